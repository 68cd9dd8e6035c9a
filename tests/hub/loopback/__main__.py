"""Start the server: python -m tests.hub.loopback --root DIR --port 0 [--page N] [--run-jobs]"""

import argparse
import os
import socket
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.hub.loopback", description="A Hugging Face Hub on loopback.")
    parser.add_argument("--root", type=Path, required=True, help="Folder for blobs, xorbs and caches; made if missing.")
    parser.add_argument("--port", type=int, default=0, help="Port on 127.0.0.1; 0 takes a free one.")
    parser.add_argument("--page", type=int, default=1000, help="Entries in one page of a listing.")
    parser.add_argument("--run-jobs", action="store_true", help="Run the commands of submitted jobs on this machine.")
    options = parser.parse_args()
    root = options.root.resolve()
    os.environ["HF_HOME"] = str(root / "server-home")  # the server's own Xet cache, never a client's

    import uvicorn

    from tests.hub.loopback.app import make_app
    from tests.hub.loopback.state import Hub

    listener = socket.create_server(("127.0.0.1", options.port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    print(url, flush=True)
    app = make_app(Hub(root, options.page, options.run_jobs, url))
    config = uvicorn.Config(app, log_level="warning", lifespan="off", http="h11", date_header=False)
    config.timeout_graceful_shutdown = 1
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()

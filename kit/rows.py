"""Rows of one split on the Hub: of parquet files just the row groups and columns needed, others streamed."""

from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from kit.storage import persist

BATCH_ROWS = 16  # pages are about 1 MB each


class ParquetRows:
    """Rows of parquet files on the Hub, of which only the row groups and columns needed are fetched."""

    def __init__(self, builder, uris, split):
        from datasets import Features
        from huggingface_hub import HfFileSystem

        self.files, self.uris = HfFileSystem(), uris
        with ThreadPoolExecutor(16) as pool:
            footers = list(pool.map(lambda uri: persist(lambda: self.footer(uri)), uris))
        self.group_rows = [rows for rows, _ in footers]
        self.features = builder.info.features or Features.from_arrow_schema(footers[0][1])
        self.total = sum(map(sum, self.group_rows))

    def footer(self, uri):
        import pyarrow.parquet as pq

        with self.open(uri) as file:
            footer = pq.read_metadata(file)
        return [
            footer.row_group(group).num_rows for group in range(footer.num_row_groups)
        ], footer.schema.to_arrow_schema()

    def open(self, uri):
        return self.files.open(uri, cache_type="none")  # pyarrow asks for just the ranges that it needs

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        row = 0
        for uri, counts in zip(self.uris, self.group_rows, strict=True):
            groups = []
            for group, count in enumerate(counts):
                if any(map(wanted, range(row, row + count))):
                    groups.append((group, row))
                row += count
            if not groups:
                continue
            with self.open(uri) as file:
                parquet = pq.ParquetFile(file, pre_buffer=False, buffer_size=1 << 23)  # else a row group is in memory
                for group, start in groups:
                    for batch in parquet.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
                        rows = [number for number in range(start, start + batch.num_rows) if wanted(number)]
                        table = pa.Table.from_batches([batch]).select(columns)
                        if rows:
                            yield rows, table if len(rows) == len(table) else table.take([r - start for r in rows])
                        start += batch.num_rows


class StreamedRows:
    """Rows of any other format that `datasets` streams, undecoded, so that skipping an image by path costs nothing."""

    def __init__(self, builder, uris, split):
        self.dataset = builder.as_streaming_dataset(split=split)
        self.features = self.dataset.features
        self.dataset = self.dataset.decode(False)
        self.total = builder.info.splits[split].num_examples if builder.info.splits else None

    def count(self):
        return sum(1 for _ in self.dataset)

    def batches(self, columns, wanted, stop=None):
        """Yields (row numbers, table of these rows) of the rows for which `wanted(row)`."""
        from datasets import Dataset

        dataset = self.dataset.select_columns(columns)
        rows = ((row, cells) for row, cells in enumerate(islice(dataset, stop)) if wanted(row))
        while batch := list(islice(rows, BATCH_ROWS)):
            numbers, cells = zip(*batch, strict=True)
            yield list(numbers), Dataset.from_list(list(cells), features=dataset.features).data.table

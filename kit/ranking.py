"""Ratings from verdicts: Bradley-Terry with a prior, intervals by resampling pages, tiers."""

import math
from collections import Counter

POINTS = 400 / math.log(10)  # Elo points a logit
PRIOR = 0.5  # weight of the virtual tie that every pair gets which was compared at all
MIN_PAGES = 20  # below, a ranking says more about the draw of the pages than about the models


def rank_boards(verdicts, prior=PRIOR, bootstrap=1000, ci=0.95, seed=42, cluster=None, min_pages=MIN_PAGES,
                tie_model="half"):  # fmt: skip
    """A board for every group of models that verdicts link, the largest first: no common rating joins two groups.

    `verdicts` are those of `jury_verdicts`; unresolved ones are left out. `cluster(verdict)` is what is drawn together
    when pages are resampled (default the page). A board is a dict: models, pages, comparisons, leaderboard (rows, best
    first), pairs (rows), tiers (lists of names), statements (sentences on what the votes cannot say), status ("ranked"
    or "insufficient": fewer than `min_pages` pages, so no ranks), tie_model, nu.

    `elo` is null where no finite rating exists, because a model (or group) won or lost all of its comparisons with the
    rest; `elo_with_prior` then only serves to sort. Raises ValueError for a prior of 0 and where a fit does not
    converge.
    """
    if prior <= 0:
        raise ValueError(f"a prior of {prior} leaves models that win or lose everything without a finite rating")
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    counted = [verdict for verdict in verdicts if verdict["score"] is not None]
    models = sorted({verdict[side] for verdict in counted for side in ("model_a", "model_b")})
    place = {model: number for number, model in enumerate(models)}
    played = np.zeros((len(models), len(models)))
    for verdict in counted:
        played[place[verdict["model_a"]], place[verdict["model_b"]]] = 1
    groups, labels = connected_components(played, directed=False) if models else (0, [])
    boards = []
    for group in range(groups):
        members = [model for model, label in zip(models, labels, strict=True) if label == group]
        own = [verdict for verdict in counted if verdict["model_a"] in members]
        boards.append(one_board(members, own, prior, bootstrap, ci, seed, cluster, min_pages, tie_model))
    boards.sort(key=lambda board: (-len(board["models"]), board["models"]))
    if len(boards) > 1:
        said = " and ".join("{" + ", ".join(board["models"]) + "}" for board in boards)
        for board in boards:
            board["statements"].insert(0, f"No comparison links {said}: there is no common ranking, only one for each.")
    return boards


def one_board(models, verdicts, prior, bootstrap, ci, seed, cluster, min_pages, tie_model):
    import numpy as np

    wins, ties = win_tables(models, verdicts, cluster or (lambda verdict: verdict["row_key"]))
    total, drawn = wins.sum(0), ties.sum(0)
    virtual = prior / 2 * ((total + total.T) > 0)
    nu = None
    if tie_model == "davidson":
        strengths, nu = fit_davidson(total - drawn / 2, drawn, virtual)
        # L-BFGS a thousand times would take minutes: the intervals keep their shape and move with the estimate.
        shift = strengths - fit_strengths((total + virtual)[None])[0]
    else:
        strengths, shift = fit_strengths((total + virtual)[None])[0], 0.0
    weights = np.random.default_rng(seed).multinomial(len(wins), [1 / len(wins)] * len(wins), size=bootstrap)
    resampled = (weights @ wins.reshape(len(wins), -1)).reshape(bootstrap, *total.shape)
    draws = fit_strengths(resampled + virtual) + shift

    groups, statements = separation(models, total, strengths)
    main = max(groups, key=lambda group: (len(group), total[group][:, group].sum()))
    strengths = POINTS * (strengths - strengths[main].mean())
    draws = POINTS * (draws - draws[:, main].mean(axis=1, keepdims=True))
    low, high = interval_levels(ci, len(wins))
    order = sorted(range(len(models)), key=lambda i: (-strengths[i], models[i]))
    ranks = 1 + (draws[:, None, :] > draws[:, :, None]).sum(axis=2)
    pages = len({verdict["row_key"] for verdict in verdicts})
    ranked = pages >= min_pages
    if not ranked:
        statements.insert(0, f"Only {pages} pages were compared, and a ranking takes {min_pages}: no ranks are given.")
    tiers = tier_numbers(order, strengths, draws, ci, len(wins))
    bounded = set(main) if len(main) > 1 else set()
    rows = [
        {
            "model": models[i],
            "rank": position if ranked else None,
            "rank_low": int(np.quantile(ranks[:, i], 0.5 - ci / 2, method="lower")) if ranked else None,
            "rank_high": int(np.quantile(ranks[:, i], 0.5 + ci / 2, method="higher")) if ranked else None,
            "tier": tiers[i] if ranked else None,
            "elo": 1500 + strengths[i] if i in bounded else None,
            "elo_low": 1500 + np.quantile(draws[:, i], low) if i in bounded else None,
            "elo_high": 1500 + np.quantile(draws[:, i], high) if i in bounded else None,
            "elo_with_prior": 1500 + strengths[i],
            "p_best": float((ranks[:, i] == 1).mean()) if ranked else None,
            **record_of(models[i], verdicts),
        }
        for position, i in enumerate(order, 1)
    ]
    return {
        "models": models,
        "pages": pages,
        "comparisons": len(verdicts),
        "leaderboard": [plain_numbers(row) for row in rows],
        "pairs": pair_rows(models, order, verdicts, strengths, draws, groups, resampled, low, high),
        "tiers": [[models[i] for i in order if tiers[i] == n] for n in sorted(set(tiers.values()))] if ranked else [],
        "statements": statements,
        "status": "ranked" if ranked else "insufficient",
        "tie_model": tie_model,
        "nu": nu,
        "prior": prior,
    }


def win_tables(models, verdicts, cluster):
    """Two arrays (clusters, models, models): points of the row's model against the column's, and ties, both ways."""
    import numpy as np

    place = {model: number for number, model in enumerate(models)}
    names = sorted({cluster(verdict) for verdict in verdicts}, key=str)
    row = {name: number for number, name in enumerate(names)}
    wins = np.zeros((len(names), len(models), len(models)))
    ties = np.zeros_like(wins)
    for verdict in verdicts:
        at, a, b = row[cluster(verdict)], place[verdict["model_a"]], place[verdict["model_b"]]
        wins[at, a, b] += verdict["score"]
        wins[at, b, a] += 1 - verdict["score"]
        if verdict["score"] == 0.5:
            ties[at, a, b] += 1
            ties[at, b, a] += 1
    return wins, ties


def fit_strengths(wins):
    """Bradley-Terry strengths in logits with mean 0, shape (draws, models), for win tables (draws, models, models).

    Newton's method on the concave log-likelihood sum of wins_ij * log(sigmoid(theta_i - theta_j)), all draws at once.
    The tables need a finite optimum, which connected ones have once the prior is added. Raises ValueError where the
    gradient does not fall below 1e-8.
    """
    import numpy as np
    from scipy.special import expit

    count, games = wins.shape[-1], wins + wins.transpose(0, 2, 1)
    theta, each = np.zeros(wins.shape[:2]), np.arange(count)
    for _ in range(100):
        chance = expit(theta[:, :, None] - theta[:, None, :])
        gradient = (wins - games * chance).sum(axis=2)
        if np.abs(gradient).max() < 1e-8:
            return theta - theta.mean(axis=1, keepdims=True)
        curve = games * chance * (1 - chance)
        hessian = -curve + 1 / count
        hessian[:, each, each] += curve.sum(axis=2)
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        theta += step / np.maximum(1, np.abs(step).max(axis=1, keepdims=True))
    raise ValueError("the ratings do not converge; a prior above 0 gives every connected table a finite optimum")


def fit_davidson(wins, ties, virtual):
    """(strengths in logits with mean 0, nu): ties with a chance of their own, nu * sqrt(p_i * p_j) (Davidson 1970).

    `wins` without ties; `virtual` is added to it.
    """
    import numpy as np
    from scipy.optimize import minimize

    wins, count = wins + virtual, len(wins)
    games = wins + wins.T + ties

    def negative(values):
        theta, log_nu = values[:-1], values[-1]
        half = (theta[:, None] - theta[None, :]) / 2
        total = np.logaddexp(np.logaddexp(half, -half), log_nu)  # of one game, both sides divided by sqrt(p_i * p_j)
        win, tie = np.exp(half - total), np.exp(log_nu - total)
        likelihood = (wins * (half - total)).sum() + (ties * (log_nu - total)).sum() / 2
        by_theta = (wins + ties / 2 - games * (win + tie / 2)).sum(axis=1)
        by_nu = (ties - games * tie).sum() / 2
        return 0.5e-6 * log_nu**2 - likelihood, np.append(-by_theta, 1e-6 * log_nu - by_nu)

    found = minimize(negative, np.append(np.zeros(count), -1.0), jac=True, method="L-BFGS-B", options={"gtol": 1e-8})
    return found.x[:-1] - found.x[:-1].mean(), float(np.exp(found.x[-1]))


def separation(models, wins, strengths):
    """(groups, sentences): groups of models between which wins and ties go both ways, and what lies between them.

    Only within a group do the votes determine finite ratings (Ford 1957).
    """
    import numpy as np
    from scipy.sparse.csgraph import connected_components

    count, labels = connected_components(wins > 0, directed=True, connection="strong")
    groups = [np.flatnonzero(labels == label) for label in range(count)]
    groups.sort(key=lambda group: -strengths[group].mean())
    sentences = []
    for group in groups if count > 1 else ():
        rest = np.setdiff1d(np.arange(len(models)), group)
        won, lost = (round(table.sum()) for table in (wins[np.ix_(group, rest)], wins[np.ix_(rest, group)]))
        names = ", ".join(models[i] for i in group)
        if not lost:
            said = f"won all {won} of its comparisons with the others. It is better; by how much"
        elif not won:
            said = f"lost all {lost} of its comparisons with the others. It is worse; by how much"
        else:
            said = f"won all {won} comparisons with those below and lost all {lost} with those above. By how much"
        sentences.append(f"{names} {said}, these votes cannot say: no rating is given.")
    if count > 1 and max(map(len, groups)) > 1:  # the group that has ratings is described by them
        main = max(groups, key=lambda group: (len(group), wins[group][:, group].sum()))
        names = ", ".join(models[i] for i in main)
        sentences = [said for said in sentences if not said.startswith(f"{names} ")]
    return [list(group) for group in groups], sentences


def interval_levels(ci, clusters):
    """The quantiles of bootstrap draws for an interval of nominal level `ci`, widened for few clusters.

    The expanded percentile interval (Hesterberg 2015, "What Teachers Should Know About the Bootstrap"): the plain one
    is too narrow by sqrt((n - 1) / n) and by the difference between the normal and Student's distribution.
    """
    from scipy.special import ndtr, ndtri

    tail = float(ndtr(widened(ci, clusters) * ndtri(0.5 - ci / 2)))
    return tail, 1 - tail


def widened(ci, clusters):
    """By how much an interval from resampling so many clusters is to be wider than its draws say."""
    from scipy.special import ndtri, stdtrit

    if clusters < 2:
        return 1e9  # nothing can be said
    return math.sqrt(clusters / (clusters - 1)) * stdtrit(clusters - 1, 0.5 - ci / 2) / ndtri(0.5 - ci / 2)


def tier_numbers(order, strengths, draws, ci, clusters):
    """{model: tier from 1}: the best model without a tier opens one, and those that cannot be told from it join.

    Told apart is a difference outside of its simultaneous interval: all pairs together are right in `ci` of all samples
    (the bootstrap of the largest studentised difference). With intervals for one pair alone, four equal models were
    split into tiers in a quarter of all simulations (benchmarks/judges.py).
    """
    import numpy as np

    # Rows are models, columns their rivals. Draws are skewed where one side wins nearly always, so that the spread
    # towards 0 is that of the draws below the estimate.
    short = np.maximum(0, strengths[:, None] - strengths[None, :] - (draws[:, :, None] - draws[:, None, :]))
    below = np.sqrt((short**2).sum(axis=0) / np.maximum(1, (short > 0).sum(axis=0)))
    largest = (short / np.maximum(below, 1e-9)).max(axis=(1, 2))
    reach = np.quantile(largest, ci) * below * widened(ci, clusters)
    tiers, number, head = {}, 0, None
    for i in order:
        if head is None or strengths[head] - strengths[i] > reach[head, i]:
            head, number = i, number + 1
        tiers[i] = number
    return tiers


def record_of(model, verdicts):
    """Wins, losses, ties, win rate (ties half), pages and comparisons of one model."""
    points = Counter()
    keys, score = set(), 0.0
    for verdict in verdicts:
        if model in (verdict["model_a"], verdict["model_b"]):
            own = verdict["score"] if verdict["model_a"] == model else 1 - verdict["score"]
            points["wins" if own > 0.5 else "losses" if own < 0.5 else "ties"] += 1
            score += own
            keys.add(verdict["row_key"])
    games = sum(points.values())
    return {**{name: points[name] for name in ("wins", "losses", "ties")}, "win_rate": score / games,
            "n_pages": len(keys), "n_comparisons": games}  # fmt: skip


def pair_rows(models, order, verdicts, strengths, draws, groups, resampled, low, high):
    """One row for every pair that was compared, the better model as `model_a`: counts, win rate, difference, both with
    intervals; `resolved` where the interval of the difference excludes 0, `robust` where 95 % of draws agree in sign.

    `elo_diff` is null between groups that `separation` keeps apart; `statement` then says what is known.
    """
    import numpy as np

    games = Counter()
    for verdict in verdicts:
        a, b, score = verdict["model_a"], verdict["model_b"], verdict["score"]
        games[a, b, label_side(score)] += 1
        games[b, a, label_side(1 - score)] += 1
        games[a, b, "points"] += score
        games[b, a, "points"] += 1 - score
    of = {i: number for number, group in enumerate(groups) for i in group}
    rows = []
    for position, i in enumerate(order):
        for j in order[position + 1 :]:
            a, b = models[i], models[j]
            won, lost, tied = (games[a, b, side] for side in ("won", "lost", "tied"))
            count = won + lost + tied
            if not count:
                continue
            gaps = draws[:, i] - draws[:, j]
            bottom, top = np.quantile(gaps, [low, high])
            played = resampled[:, i, j] + resampled[:, j, i]
            rates = resampled[played > 0, i, j] / played[played > 0]
            rate = games[a, b, "points"] / count
            ends = np.quantile(rates, [low, high]) if 0 < rate < 1 else wilson(rate, count)
            row = {"model_a": a, "model_b": b, "n": count, "wins_a": won, "wins_b": lost, "ties": tied}
            row |= {"win_rate_a": rate, "ci_low": ends[0], "ci_high": ends[1], "elo_diff": strengths[i] - strengths[j]}
            row |= {"diff_low": bottom, "diff_high": top, "resolved": bool(bottom > 0 or top < 0)}
            row |= {"robust": bool((gaps > 0).mean() >= 0.95), "statement": None}
            if of[i] != of[j]:
                row |= dict.fromkeys(("elo_diff", "diff_low", "diff_high"))
                better = "never lost to" if rate == 1 else "is only linked by wins of one side to"
                row["statement"] = f"{a} {better} {b} ({won}-{lost}): a difference in points cannot be given."
            rows.append(plain_numbers(row))
    return rows


def label_side(score):
    return "won" if score > 0.5 else "lost" if score < 0.5 else "tied"


def wilson(rate, count, z=1.959964):
    """Wilson's interval of a share."""
    middle, spread = rate + z * z / (2 * count), z * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count**2))
    return (middle - spread) / (1 + z * z / count), (middle + spread) / (1 + z * z / count)


def plain_numbers(row):
    """Floats of NumPy become floats with five decimals, which JSON takes and a person can read."""
    return {
        key: round(float(value), 5) if isinstance(value, float) or hasattr(value, "dtype") else value
        for key, value in row.items()
    }


def resolvable_gap(pages):
    """The smallest gap in Elo points that this many pages show with 80 % power at the 5 % level, one vote a page."""
    gap = 0.25  # win rate above one half; sqrt(n) * gap = z_0.975 / 2 + z_0.8 * sqrt(1 / 4 - gap^2), by iteration
    for _ in range(100):
        gap = min(0.499, (0.97998 + 0.84162 * math.sqrt(0.25 - gap * gap)) / math.sqrt(max(pages, 1)))
    return POINTS * math.log((0.5 + gap) / (0.5 - gap))


def sequential_elo(verdicts, orders=200, seed=42, k=32):
    """{model: (mean, standard deviation)} of the sequential Elo rating over random orders of the same verdicts.

    For comparison with old tables only: the rating depends on the order, as the deviation shows.
    """
    import random

    counted = [verdict for verdict in verdicts if verdict["score"] is not None]
    shuffler, seen = random.Random(seed), {}
    for _ in range(orders):
        shuffler.shuffle(counted)
        ratings = {}
        for verdict in counted:
            a, b = verdict["model_a"], verdict["model_b"]
            first, second = ratings.get(a, 1500.0), ratings.get(b, 1500.0)
            gain = k * (verdict["score"] - 1 / (1 + 10 ** ((second - first) / 400)))
            ratings[a], ratings[b] = first + gain, second - gain
        for model, rating in ratings.items():
            seen.setdefault(model, []).append(rating)
    means = {model: math.fsum(values) / len(values) for model, values in sorted(seen.items())}
    return {
        model: (mean, math.sqrt(math.fsum((value - mean) ** 2 for value in seen[model]) / len(seen[model])))
        for model, mean in means.items()
    }


def leaderboard_text(boards):
    """The boards as aligned text for a terminal: tier, rank interval, model, rating with interval, record."""
    lines = []
    for board in boards:
        width = max(len(model) for model in board["models"])
        lines.append(f"{'tier':>4} {'ranks':>7}  {'model':<{width}}  {'Elo':>5} {'interval':>11}  {'won':>5} {'n':>5}")
        for row in board["leaderboard"]:
            ranks = f"{row['rank_low']}-{row['rank_high']}" if row["rank"] else "-"
            elo = f"{row['elo']:.0f}" if row["elo"] is not None else "none"
            ends = f"{row['elo_low']:.0f}-{row['elo_high']:.0f}" if row["elo"] is not None else "-"
            lines.append(
                f"{row['tier'] or '-':>4} {ranks:>7}  {row['model']:<{width}}  {elo:>5} {ends:>11}  "
                f"{row['win_rate']:>5.0%} {row['n_comparisons']:>5}"
            )
        lines += [f"  {said}" for said in board["statements"]]
    return "\n".join(lines)

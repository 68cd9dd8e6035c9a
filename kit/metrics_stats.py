"""How sure figures over pages are: intervals by resampling pages, and tests of two runs on the same pages."""


def ratio_interval(errors, lengths, resamples=2000, level=0.95, seed=42):
    """(low, high) of sum(errors) / sum(lengths), pages resampled together (BCa bootstrap).

    Both None below two pages or where the truth is empty. Where every resample gives the same value, that value twice.
    """
    import warnings

    import numpy as np
    from scipy.stats import bootstrap

    errors, lengths = np.asarray(errors, float), np.asarray(lengths, float)
    if len(errors) < 2 or not lengths.sum():
        return None, None

    def rate(errors, lengths, axis=-1):
        return errors.sum(axis) / np.maximum(lengths.sum(axis), 1e-9)

    options = {"paired": True, "n_resamples": resamples, "confidence_level": level, "vectorized": True, "batch": 500}
    for method in ("BCa", "percentile"):  # BCa has no value where leaving out any page changes nothing
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            draws = bootstrap((errors, lengths), rate, method=method, rng=np.random.default_rng(seed), **options)
        if np.isfinite(draws.confidence_interval).all():
            return tuple(float(end) for end in draws.confidence_interval)
    return (float(rate(errors, lengths)),) * 2


def paired_p_value(differences, resamples=10_000, seed=42):
    """Two-sided p-value of a mean difference of 0 between paired pages: signs flipped, all ways where these are few."""
    import numpy as np
    from scipy.stats import permutation_test

    differences = np.asarray(differences, float)
    if len(differences) < 2 or not differences.any():
        return 1.0
    tested = permutation_test(
        (differences,),
        lambda values, axis: values.mean(axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=1000,
        rng=np.random.default_rng(seed),
    )
    return float(tested.pvalue)


def holm(p_values):
    """p-values adjusted for their number by Holm's method, in the order given."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted

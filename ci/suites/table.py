"""The table of what passed, failed and was skipped, and the comparison with NCCL's own run."""

from cases import FAILED, NOT_RUN, PASSED, SKIPPED
from places import NCCL, OURS

COLUMNS = [PASSED, FAILED, SKIPPED, NOT_RUN]


def table(files: list[dict]) -> tuple[str, bool]:
    """The table of the results of several runs, and whether all is well: nothing fails that does not fail with NCCL."""
    results, skipped, broken = merged(files)
    rows = {(suite, library): dict.fromkeys(COLUMNS, 0) for suite, library, _ in results}
    for (suite, library, _), result in results.items():
        rows[suite, library][result["state"]] += 1
    lines = [f"| suite | library | {' | '.join(COLUMNS)} |", "| --- | --- |" + " --- |" * len(COLUMNS)]
    for (suite, library), counts in rows.items():
        lines.append(f"| {suite} | {library} | {' | '.join(str(counts[state]) for state in COLUMNS)} |")
    lines += [f"| {suite} | | skipped: {why} |" + " |" * (len(COLUMNS) - 1) for suite, why in skipped.items()]
    lines += [f"\n{suite}: its tests could not be built or listed: {why}" for suite, why in broken.items()]

    failing = {key: result for key, result in results.items() if key[1] != NCCL and result["state"] == FAILED}
    beside = {key: results.get((key[0], NCCL, key[2]), {"state": NOT_RUN})["state"] for key in failing}
    ours = [key for key in failing if beside[key] != FAILED]
    lines += ["", f"{len(ours)} fail here and not with NCCL" + (":" if ours else ".")]
    for suite, library, test in ours:
        why = failing[suite, library, test]["why"]
        lines.append(f"- {suite} with {library}: {test} (NCCL: {beside[suite, library, test]}): {why}")
    both = [key for key in failing if beside[key] == FAILED]
    if both:
        lines += ["", f"{len(both)} fail here and with NCCL:"]
        lines += [f"- {suite} with {library}: {test}" for suite, library, test in both]
    strangers = [suite for suite, library in rows if library == OURS and not called(results, suite, OURS)]
    lines += [
        f"\nNo test of {suite} called this project's library: its results with it say nothing." for suite in strangers
    ]
    wrong = [suite for suite, library in rows if library == NCCL and called(results, suite, NCCL)]
    lines += [f"\nNCCL's run of {suite} called this project's library: its results say nothing." for suite in wrong]
    return "\n".join(lines), not (ours or broken or strangers or wrong)


def called(results: dict, suite: str, library: str) -> bool:
    """Whether a test of a suite called the library in place of NCCL, or none has passed."""
    of_suite = [result for key, result in results.items() if key[:2] == (suite, library)]
    if library == OURS and not any(result["state"] == PASSED for result in of_suite):
        return True
    return any(result["called"] for result in of_suite)


def merged(files: list[dict]) -> tuple[dict, dict, dict]:
    """The results by suite, library and test, the suites that were skipped, and those that could not be built or listed."""
    results, skipped, broken = {}, {}, {}
    for file in files:
        skipped |= file["skipped"]
        broken |= file["broken"]
        for result in file["results"]:
            key = result["suite"], result["library"], result["test"]
            if key not in results or result["state"] != NOT_RUN:
                results[key] = result
    return results, skipped, broken

"""Each row's sample is its test; ordinary lines stay silent; bad rule files say what is wrong."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.agent.logs.rules import LogRule, RateLimit, Rules, load, parse
from holdfast.base.errors import UsageError
from holdfast.facts.tracebacks import is_secondary

RULES = load()

ORDINARY = [
    "step 41 | loss: 2.3104 | lr 3.0e-04 | grad norm 1.2 | mem 61.2 GiB",
    "[INFO] iteration 500/1000 | elapsed time per iteration (ms): 812.4 | learning rate: 1e-4",
    "[rank0]: max memory allocated 71.3 GiB, reserved 75.0 GiB",
    "NCCL INFO Channel 00/16 : 0 1 2 3 4 5 6 7",
    "node1:99:99 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB",
    "error=0.0312 relative error 1e-3 on the validation set",
    "Connected to tracking server; timeout set to 600 s",
    "TORCH_NCCL_BLOCKING_WAIT=0, timeout is set to 600000 ms by watchdog config",
    "loss is finite, nan check passed: no nan in gradients",
    "information: inference batch 12",
    "Reading the checkpoint shard 3 of 8",
    "financial-news.jsonl: 120000 documents",
    "retrying after connection reset by peer (attempt 1)",
    "out_of_memory_limit = 0.9",
    "WARN NativeCodeLoader: Unable to load native-hadoop library for your platform",
    "",
]


@pytest.mark.parametrize("rule", RULES.all, ids=lambda rule: rule.name)
def test_the_sample_of_each_row_finds_its_row(rule: LogRule) -> None:
    found = RULES.match(rule.sample, host=rule.host)
    assert found is not None
    assert found.name == rule.name  # and no row above takes it away
    if not rule.host:
        assert list(RULES.scan(f"before\n{rule.sample}\nafter")) == [(rule.sample, rule)]


@pytest.mark.parametrize("rule", [rule for rule in RULES.all if not rule.host], ids=lambda rule: rule.name)
def test_a_row_and_the_traceback_reader_agree_on_victims(rule: LogRule) -> None:
    assert is_secondary(rule.sample) or not rule.secondary


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_lines_say_nothing(line: str) -> None:
    assert RULES.match(line) is None
    assert RULES.match(line, host=True) is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda-oom"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda-error"),
        ("[rank2]: MemoryError", "host-memory"),
        ("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB", "host-memory"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "host-memory"),
        ("bash: line 1: 4242 Segmentation fault      (core dumped) python train.py", "segfault"),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "peer-gone"),
        ('{"step": 12, "loss": NaN}', "loss-nan"),
        ("step=12 loss=-inf", "loss-nan"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "no-route"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk-full"),
        ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "nccl-error"),
        ("AssertionError: expected 3", None),
        ("ValueError: unknown optimizer", None),
    ],
)
def test_lines_from_the_field(line: str, name: str | None) -> None:
    found = RULES.match(line)
    assert (found.name if found else None) == name


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from([*ORDINARY, *(rule.sample for rule in RULES.all)]), max_size=12))
def test_a_block_finds_what_its_lines_find(lines: list[str]) -> None:
    expected = [(line, rule) for line in lines if (rule := RULES.match(line)) is not None]
    assert list(RULES.scan("\n".join(lines))) == expected


ROW = (
    '[[rule]]\nname = "disk-full"\nkind = "storage"\nseverity = "info"\npattern = "quota \\\\d+"\nsample = "quota 7"\n'
)


def test_a_users_rule_comes_first_and_replaces_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(ROW)
    rules = load([tmp_path / "mine.toml"])
    assert len(rules.all) == len(RULES.all)
    assert rules.match("quota 12 reached") is rules.all[0]
    assert list(rules.scan("a\nquota 12 reached\nb")) == [("quota 12 reached", rules.all[0])]  # needs no needle
    assert rules.match("OSError: [Errno 28] No space left on device") is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"storage"', '"disk"', "r.toml: rule 1 (disk-full): kind: 'disk' is not one of code, "),
        ('"info"', '"fatal"', "r.toml: rule 1 (disk-full): severity: 'fatal' is not one of critical, info, warning"),
        ('"quota \\\\d+"', '"("', "r.toml: rule 1 (disk-full): pattern: not a regular expression"),
        ('"quota 7"', '"seven"', "r.toml: rule 1 (disk-full): sample: the pattern does not match it"),
        ('name = "disk-full"\n', "", "r.toml: rule 1: name: missing"),
        ("pattern", "regex", "r.toml: rule 1 (disk-full): regex: 'regex' is not one of exclude, "),
        ("[[rule]]", "[rule]", "r.toml: write [[rule]]"),
        ("[[rule]]", "[[rules]]", "r.toml: unknown key 'rules'"),
        ('"info"', "", "r.toml: Invalid value"),
        ('"info"', '"info"\nneedles = ["xyz"]', "r.toml: rule 1 (disk-full): needles: none of them is in the sample"),
        ('"info"', '"info"\nneedles = "quota"', "r.toml: rule 1 (disk-full): needles: must be a list"),
        ('"info"', '"info"\nsecondary = 1', "r.toml: rule 1 (disk-full): secondary: must be true or false"),
    ],
)
def test_a_bad_rule_says_file_row_and_field(old: str, new: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(ROW.replace(old, new), "r.toml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_name_twice_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"rule 2 \(disk-full\): name: used twice"):
        parse(ROW + ROW, "r.toml")
    with pytest.raises(UsageError, match=r"none\.toml"):
        load([tmp_path / "none.toml"])


def test_the_first_match_passes_and_the_rest_are_counted() -> None:
    limit: RateLimit[tuple[str, int]] = RateLimit(period=10.0)
    assert limit.admit(("peer-gone", 3), "a", 100.0) == 1
    assert limit.admit(("peer-gone", 4), "a", 100.0) == 1
    assert [limit.admit(("peer-gone", 3), "b", 101.0 + i) for i in range(4)] == [0, 0, 0, 0]
    assert limit.admit(("peer-gone", 3), "c", 110.0) == 5
    assert limit.admit(("peer-gone", 3), "d", 111.0) == 0
    assert limit.flush(115.0) == []
    assert limit.flush(121.0) == [(("peer-gone", 3), "d", 1)]
    assert limit.flush(132.0) == []
    assert limit.admit(("peer-gone", 3), "e", 133.0) == 1


def test_no_rules_match_nothing() -> None:
    assert Rules(()).match("CUDA error") is None

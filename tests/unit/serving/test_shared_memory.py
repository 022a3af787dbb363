import os

from swift_backend.serving.shared_memory import new_region_prefix, remove_regions


def test_prefixes_carry_the_process_and_differ():
    first, second = new_region_prefix(), new_region_prefix()
    assert first.startswith(f"swift_{os.getpid()}_") and first.endswith("_")
    assert first != second


def test_only_our_own_files_go(tmp_path):
    for name in ("swift_1_ab_x", "swift_1_ab_y", "swift_11_ab_x", "other"):
        (tmp_path / name).touch()
    assert remove_regions("swift_1_ab_", tmp_path) == ["swift_1_ab_x", "swift_1_ab_y"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "swift_11_ab_x"]

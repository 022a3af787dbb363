import pytest

from swift_backend.serving.cache_folder import cache_folder
from swift_backend.serving.launch_error import LaunchError


def test_it_is_made_with_a_place_for_logs(tmp_path):
    folder = cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert folder == tmp_path / "cache" / "swift-triton"
    assert (folder / "logs").is_dir()
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")}) == folder


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LaunchError, match="cannot be made: Not a directory. Set XDG_CACHE_HOME to a writable folder"):
        cache_folder({"XDG_CACHE_HOME": str(tmp_path / "file")})

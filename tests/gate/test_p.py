from .graphs import Graph
from .conftest import minilm as m
def test_x() -> None:
    import sys
    print([x for x in sys.modules if "graphs" in x or "conftest" in x and "gate" in x])
    assert Graph

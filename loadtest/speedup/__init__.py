"""How much faster is each way of speculating than none, by kind of text? `python -m loadtest.speedup --dataset F …`"""

"""How fast is plain decoding beside other engines on the same weights? `python -m loadtest.baselines --model M`"""

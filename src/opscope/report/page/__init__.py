"""The one-file page: documents in, HTML out. `traces` gathers what is drawn, `html` puts the file together."""

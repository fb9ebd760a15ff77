"""Run a network once to a cut, resume it many times: what SICL's votes are computed with."""

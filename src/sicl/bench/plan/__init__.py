"""Plans: a TOML file or a table becomes cells."""

smexec nofile.toml

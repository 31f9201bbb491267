smexec --steps 3

"""What an operation key may be made of, tried while something goes wrong."""

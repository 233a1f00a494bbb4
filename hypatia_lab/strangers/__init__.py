"""What others bring: a reader's kernel, a problem of a public format, a program that somebody has published."""

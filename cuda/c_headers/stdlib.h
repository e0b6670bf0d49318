// In the place of the C library's, for compilers that run without files. They know malloc, free and abs, and nothing else of it.

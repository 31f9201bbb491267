const char* const name = "frobnicator";

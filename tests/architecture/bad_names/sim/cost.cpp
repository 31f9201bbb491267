// A comment may cite frobnicator's own documentation.
double passes_frobnicator = 1;
bool is_quick(const char* text) { return says(text, "Frobnicator of 2021"); }
double GizmoOverhead() { return 3; }
bool is_known(const char* group) { return group == "some_group"; }
double gizmos = 1, frobnicators = 2;  // words that only look alike

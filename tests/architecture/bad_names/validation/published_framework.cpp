const Entry entries[] = {{{"frobnicator"}, always("frobnicator-2021")}, {{"gizmo trainer"}, always("frobnicator-2021")}};

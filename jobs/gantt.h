// One run of a job as a chart of characters.
#pragma once

#include <string>
#include <vector>

#include "core/value.h"
#include "jobs/job_model.h"
#include "jobs/job_run.h"

namespace jobs {

// A row for everything the job did, a column for an equal part of the time; a cell's shade is the share of
// the column that went there: '.' some, ':' a tenth, '+' a third, '#' two thirds. Each row ends with its
// time. With 54 columns no line is wider than 80 characters.
std::string gantt_text(const JobModel& model, const std::vector<Stretch>& stretches, int columns = 54);

// Header `kind,begin_s,end_s`, a line a stretch, in order.
std::string gantt_csv(const std::vector<Stretch>& stretches);

// Rows {activity, from_s, to_s, seconds, times}, by activity and in order: stretches of one kind that are
// less than a few thousandths of the run apart are one row, with the time and number of them.
core::Value activities_of(const std::vector<Stretch>& stretches);

}  // namespace jobs

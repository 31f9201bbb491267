#include <algorithm>
#include <vector>

namespace model {

bool has(const std::vector<int>& numbers, int number) {
    return std::ranges::find(numbers, number) != numbers.end();
}

}  // namespace model

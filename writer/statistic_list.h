// The names of a metric's statistics as both formats list them in one text: "norm,max,min,mean".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trendprobe {

std::string join_statistics(const std::vector<std::string>& names);
std::vector<std::string> split_statistics(std::string_view text);

}  // namespace trendprobe

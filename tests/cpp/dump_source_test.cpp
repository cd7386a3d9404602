#include "offline/dump_source.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/cpp/temporary_directory.h"

namespace trendprobe {
namespace {

namespace fs = std::filesystem;

/// All that the real msProbe wrote for one step of one process.
std::vector<fs::path> real_directories() {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(TRENDPROBE_TEST_DATA)) {
    if (entry.path().filename() == "dump.json") found.push_back(entry.path().parent_path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return (std::ostringstream() << file.rdbuf()).str();
}

void write(const fs::path& path, std::string_view text) { std::ofstream(path) << text; }

std::string replaced(std::string text, std::string_view old, std::string_view with) {
  for (std::size_t at = text.find(old); at != std::string::npos; at = text.find(old, at)) {
    text.replace(at, old.size(), with);
    at += with.size();
  }
  return text;
}

/// A tree of one rank whose steps may come from anywhere.
class Tree {
 public:
  void add_copy(const fs::path& directory) {
    const fs::path step = add_step();
    for (const char* name : {"dump.json", "construct.json"}) {
      if (fs::exists(directory / name)) fs::copy_file(directory / name, step / name);
    }
  }

  void add(std::string_view dump, std::string_view construct) {
    const fs::path step = add_step();
    write(step / "dump.json", dump);
    write(step / "construct.json", construct);
  }

  const fs::path& path() const { return directory_.path(); }

 private:
  fs::path add_step() {
    fs::path step = path() / ("step" + std::to_string(steps_++)) / "rank0";
    fs::create_directories(step);
    return step;
  }

  TemporaryDirectory directory_;
  int steps_ = 0;
};

/// Everything of a unit's records, in words; NaN and missing by their bits.
std::string describe(const UnitRecords& records) {
  std::ostringstream text;
  for (const RecordBlock& block : records.blocks) {
    text << block.training_step << ' ' << block.micro_step << ' '
         << records.metrics[block.metric].name << '\n';
    const std::size_t width = records.metrics[block.metric].statistics.size();
    EXPECT_EQ(block.values.size(), block.targets.size() * width);
    for (std::size_t i = 0; i < block.targets.size(); ++i) {
      const Target& target = (*records.targets)[block.targets[i]];
      text << target.name << ' ' << target.vpp_stage << ' ' << target.call;
      for (std::size_t k = 0; k < width; ++k) {
        text << ' ' << std::bit_cast<std::uint64_t>(block.values[i * width + k]);
      }
      text << '\n';
    }
  }
  return text.str();
}

std::vector<std::string> describe(const Diagnostics& diagnostics) {
  std::vector<std::string> texts;
  for (const Issue& issue : diagnostics.issues()) {
    texts.push_back(issue.path + ": " + issue.location + ": " + issue.what + ": " + issue.kept);
  }
  return texts;
}

/// A source that reads one step after another must find in each what one does that reads nothing
/// else.
void expect_steps_independent(const Tree& tree, const NumberingOptions& options) {
  Diagnostics scanned;
  const std::unique_ptr<RecordSource> source = make_dump_source(tree.path(), options);
  for (const ReadUnit& unit : source->scan(scanned, 1)) {
    SCOPED_TRACE(unit.path);
    Diagnostics diagnostics;
    const UnitRecords records = source->read(unit, diagnostics);

    Diagnostics alone_scanned;
    Diagnostics alone_diagnostics;
    const std::unique_ptr<RecordSource> alone = make_dump_source(tree.path(), options);
    const std::vector<ReadUnit> units = alone->scan(alone_scanned, 1);
    const ReadUnit& same = units.at(unit.id);
    EXPECT_EQ(same.steps, unit.steps);
    const UnitRecords expected = alone->read(same, alone_diagnostics);
    EXPECT_EQ(describe(records), describe(expected));
    EXPECT_EQ(describe(diagnostics), describe(alone_diagnostics));
  }
}

void expect_steps_independent(const Tree& tree) {
  NameMapping mapping;
  mapping.emplace_back("layers.1", "layers.0");
  for (const NumberingOptions& options :
       {NumberingOptions{}, NumberingOptions{.micro_steps = false},
        NumberingOptions{.mapping = mapping}, NumberingOptions{.as_msprobe = true}}) {
    expect_steps_independent(tree, options);
  }
}

TEST(DumpSource, ReadsEachStepAsIfItWereAlone) {
  Tree tree;
  // Twice each: the second time nothing is new; and the damaged ones have their faults again.
  for (const fs::path& directory : real_directories()) {
    tree.add_copy(directory);
    tree.add_copy(directory);
  }
  expect_steps_independent(tree);
}

TEST(DumpSource, SeesWhatChangesBetweenTwoStepsThatAreAlmostTheSame) {
  const fs::path directory = fs::path(TRENDPROBE_TEST_DATA) / "pt_L0_proc" / "data" / "step1";
  ASSERT_FALSE(fs::is_empty(directory));
  const fs::path process = fs::directory_iterator(directory)->path();
  const std::string dump = text_of(process / "dump.json");
  const std::string construct = text_of(process / "construct.json");
  const std::string& same = dump;

  Tree tree;
  const auto add = [&](const std::string& changed_dump, const std::string& changed_construct) {
    ASSERT_TRUE(changed_dump != dump || changed_construct != construct);
    tree.add(same, construct);
    tree.add(changed_dump, changed_construct);
    tree.add(changed_dump, changed_construct);
  };
  add(replaced(dump, "layers.1", "layers.7"), construct);
  add(replaced(dump, "\"weight\"", "\"heavy\""), construct);
  add(replaced(dump, "torch.Tensor", "some.Tensor"), construct);
  add(replaced(dump, "\"input_args\"", "\"is_recompute\": true,\n \"input_args\""), construct);
  add(replaced(dump, "\"Max\"", "\"Least\""), construct);
  add(replaced(replaced(dump, "\"Max\"", "\"a\""), "\"Min\"", "\"b\""), construct);
  std::string bare = dump;
  for (const char* name : {"Max", "Min", "Mean", "Norm"}) {
    bare = replaced(bare, "\"" + std::string(name) + "\"", "\"no" + std::string(name) + "\"");
  }
  add(bare, construct);
  add(dump.substr(0, dump.size() / 2), construct);
  add(dump, "{}");
  add(dump, construct.substr(0, construct.size() / 2));
  add(dump, replaced(construct, ": null", ": 7"));
  add(dump, replaced(construct, "forward.0\": null", "forward.0\": \"no such node\""));
  add(dump, replaced(construct, "layers.1", "layers.\xFF"));
  add(dump, replaced(construct, "layers.1", "layers.\\u0031"));
  // A name with an escape is kept apart from the text of its file.
  add(replaced(dump, "layers.1", "layers.\\u0031"),
      replaced(construct, "layers.1", "layers.\\u0031"));
  add(dump, R"({"Module.a.A.forward.0": "Module.a.A.forward.0"})");
  expect_steps_independent(tree);
}

}  // namespace
}  // namespace trendprobe

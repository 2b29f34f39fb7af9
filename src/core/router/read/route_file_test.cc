// SPDX-License-Identifier: Apache-2.0
// Route files: rules, sections, conditions, includes, presets, names; what is refused, and where.
#include "router/read/route_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/check.h"

namespace {

using anyop::Compare;
using anyop::RouteFile;
using anyop::Rule;
using anyop::Term;

RouteFile Parse(const std::string& text) {
  RouteFile routes;
  std::string error;
  CHECK(anyop::ParseRoutes(text, "main", &routes, &error));
  CHECK_EQ(error, "");
  return routes;
}

std::string Mistake(const std::string& text) {
  RouteFile routes;
  routes.later = {"kept"};
  std::string error;
  CHECK(!anyop::ParseRoutes(text, "main", &routes, &error));
  CHECK(routes.files.empty() && routes.rules.empty() && routes.later.size() == 1);
  return error;
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

// A folder of its own, gone at the end.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/anyop_route_file_test_XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Folder() {
    for (const std::string& file : files_) std::remove(file.c_str());
    rmdir(path_.c_str());
  }
  std::string Path(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }
  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = Path(name);
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // What reading says, without the folder's name.
  std::string Mistake(const std::string& path) const {
    RouteFile routes;
    std::string error;
    CHECK(!anyop::ReadRouteFile(path, &routes, &error));
    for (size_t at; (at = error.find(path_ + "/")) != error.npos;)
      error.erase(at, path_.size() + 1);
    return error;
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

TEST(RulesHaveTheirPlaces) {
  const RouteFile routes = Parse(
      "\xEF\xBB\xBF# caf\xC3\xA9\r\n\r\nrms_norm = triton, cuda\r\n\t*norm*=cpu# all\n"
      "acme::sc?le = aten");
  CHECK_EQ(routes.rules.size(), 3u);
  const Rule& first = routes.rules[0];
  CHECK_EQ(first.pattern, "rms_norm");
  CHECK_EQ(Join(first.backends), "triton cuda");
  CHECK(first.when.empty());
  CHECK_EQ(anyop::PlaceText(routes, first.place), "main:3:1: ");
  CHECK_EQ(anyop::PlaceText(routes, first.backend_places[1]), "main:3:20: ");
  CHECK_EQ(routes.rules[1].pattern, "*norm*");
  CHECK_EQ(anyop::PlaceText(routes, routes.rules[1].place), "main:4:2: ");
  CHECK_EQ(routes.rules[2].pattern, "acme.sc?le");
  CHECK(Parse("").rules.empty() && Parse("\n # \n").rules.empty());
}

TEST(SectionsEndAtTheNext) {
  const RouteFile routes = Parse(
      "a = cpu\n[when dtype=float32|bfloat16 device!=cuda]\na = aten\nb = cpu\n"
      "[ when D>8 ] # more\na = cpu\n[always]\na = aten\nnamespace acme\nnamespace acme\n"
      "include = cpu\nnamespace = cpu\n");
  CHECK_EQ(routes.rules.size(), 7u);
  CHECK_EQ(routes.rules[0].when.size(), 0u);
  CHECK_EQ(routes.rules[1].when.size(), 2u);
  CHECK_EQ(Join(routes.rules[2].when[0].words), "float32 bfloat16");
  CHECK(routes.rules[2].when[1].compare == Compare::kNotEqual);
  CHECK_EQ(anyop::PlaceText(routes, routes.rules[2].when[1].place), "main:2:30: ");
  CHECK_EQ(routes.rules[3].when[0].name, "D");
  CHECK_EQ(routes.rules[4].when.size(), 0u);
  CHECK_EQ(Join(routes.later), "acme");
  CHECK_EQ(routes.rules[5].pattern, "include");
}

TEST(ConditionsCompareAndCount) {
  std::vector<Term> terms;
  std::string error;
  CHECK(
      anyop::ParseCondition(" D % 8 = 0 numel( X )<=4096 k>=-1 k<3 rank(_)!=2 "
                            "contiguous(x)=1 dtype(weight) = int8 D>9223372036854775807",
                            &terms, &error));
  CHECK_EQ(terms.size(), 8u);
  CHECK(terms[0].name == "D" && terms[0].modulo == 8 && terms[0].number == 0);
  CHECK(terms[1].argument == "X" && terms[1].compare == Compare::kLessEqual);
  CHECK(terms[2].number == -1 && terms[2].compare == Compare::kGreaterEqual);
  CHECK(terms[3].compare == Compare::kLess && terms[3].modulo == 0);
  CHECK(terms[4].argument == "_" && terms[4].compare == Compare::kNotEqual);
  CHECK(terms[5].argument == "x" && terms[5].number == 1);
  CHECK(terms[6].argument == "weight" && Join(terms[6].words) == "int8");
  CHECK(terms[7].number == INT64_MAX && terms[7].compare == Compare::kGreater);
  CHECK(anyop::ParseCondition("", &terms, &error) && terms.empty());
  CHECK(!anyop::ParseCondition("D>8 dtpye=int8", &terms, &error));
  CHECK_EQ(error,
           "column 5: found 'dtpye', expected dtype, device, rank, numel, contiguous, address, "
           "given, capability, a size or an argument; "
           "did you mean 'dtype'?");
  CHECK(!anyop::ParseCondition("D>8]", &terms, &error));
  CHECK(!anyop::ParseCondition("D>8\nD>9", &terms, &error));
  CHECK(!anyop::ParseCondition(std::string("D>8\0", 4), &terms, &error));
}

TEST(MistakesHavePlaces) {
  CHECK_EQ(Mistake("a = cpu\n\xC3\xA9"),
           "main:2:1: found '\xC3\xA9' (U+00E9), expected the name of an operator, include, "
           "namespace or '['");
  CHECK_EQ(Mistake("a = cpu\nb = cpu\na = aten"),
           "main:3:1: found 'a' again, expected one rule; line 1 has it in the same section");
  CHECK_EQ(Mistake("# \xC3\xA9 \xFF"), "main:1:5: found the byte 0xff, expected UTF-8");
  CHECK_EQ(Mistake("[whn D>8]"),
           "main:1:2: found 'whn', expected 'when' or 'always'; did you mean 'when'?");
  CHECK_EQ(Mistake("[when D>8\n"), "main:1:10: found the end of the line, expected ']'");
  const std::string long_word(100000, 'x');
  CHECK_EQ(Mistake("a " + long_word),
           "main:1:3: found '" + std::string(60, 'x') + "...', expected '='");
}

TEST(ManyThingsAreTooMany) {
  std::string rules, namespaces, terms = "[when";
  for (int i = 0; i < 8193; ++i) rules += "a" + std::to_string(i) + "=b\n";
  CHECK_EQ(Mistake(rules), "main:8193:7: found 'b', expected at most 8192 rules in all files");
  for (int i = 0; i < 257; ++i) namespaces += "namespace a" + std::to_string(i) + "\n";
  CHECK_EQ(Mistake(namespaces),
           "main:257:15: found the end of the line, expected at most 256 namespaces");
  for (int i = 0; i < 33; ++i) terms += " D>8";
  CHECK_EQ(Mistake(terms + "]"), "main:1:135: found 'D', expected at most 32 words in a condition");
}

TEST(IncludesStandWhereTheyAre) {
  Folder folder;
  folder.Write("sub.routes", "a = sub\n[when D>8]\na = sub2\n");
  const std::string main = folder.Write("main.routes",
                                        "a = first\n[when device=cpu]\ninclude \"sub.routes\"\n"
                                        "a = last\ninclude cuda # preset\n");
  RouteFile routes;
  std::string error;
  CHECK(anyop::ReadRouteFile(main, &routes, &error));
  CHECK_EQ(error, "");
  CHECK_EQ(routes.rules.size(), 6u);
  // What is included in a section holds only there.
  const size_t terms[] = {0, 1, 2, 1, 2, 2};
  for (size_t i = 0; i < 6; ++i) CHECK_EQ(routes.rules[i].when.size(), terms[i]);
  CHECK_EQ(Join(routes.rules[2].backends), "sub2");
  CHECK_EQ(routes.files[routes.rules[2].place.file],
           main.substr(0, main.rfind('/')) + "/sub.routes");
  CHECK_EQ(routes.rules[2].when[0].place.file, 0);
  CHECK_EQ(routes.rules[2].when[1].place.file, 1);
  CHECK_EQ(Join(routes.rules[3].backends), "last");
  CHECK_EQ(anyop::PlaceText(routes, routes.rules[5].place), "preset cuda:7:1: ");
}

TEST(IncludesAreBounded) {
  Folder folder;
  folder.Write("a.routes", "include b.routes");
  folder.Write("b.routes", "x = y\ninclude ./a.routes");
  CHECK_EQ(folder.Mistake(folder.Path("a.routes")),
           "b.routes:2:9: found an include loop: 'a.routes' includes 'b.routes' includes "
           "'./a.routes'");
  for (int i = 0; i < 17; ++i)
    folder.Write("d" + std::to_string(i) + ".", "include d" + std::to_string(i + 1) + ".");
  CHECK_EQ(folder.Mistake(folder.Path("d0.")),
           "d15.:1:9: found a file within 16 others, expected fewer");
  // 4 to the power of 12 includes, none of them a loop.
  for (int i = 0; i < 12; ++i) {
    std::string text;
    for (int k = 0; k < 4; ++k) text += "include w" + std::to_string(i + 1) + ".\n";
    folder.Write("w" + std::to_string(i) + ".", text);
  }
  folder.Write("w12.", "");
  CHECK(folder.Mistake(folder.Path("w0.")).find("found more than 1024 includes") !=
        std::string::npos);
  folder.Write("large.", std::string(1 << 20, '\n'));
  std::string text;
  for (int i = 0; i < 17; ++i) text += "include large.\n";
  CHECK(folder.Mistake(folder.Write("total.", text))
            .find("total.:16:9: found more than 16777216 bytes in all files") == 0);
}

TEST(OnlyRegularFilesAreRead) {
  Folder folder;
  const std::string pipe = folder.Path("pipe");
  CHECK_EQ(mkfifo(pipe.c_str(), 0600), 0);
  CHECK_EQ(folder.Mistake(pipe), "pipe:1:1: found a pipe, expected a regular file");
  CHECK_EQ(folder.Mistake(folder.Write("main.", "\ninclude pipe/../pipe")).find("main.:2:9: '"),
           0u);
  CHECK_EQ(folder.Mistake("/dev/zero"), "/dev/zero:1:1: found a device, expected a regular file");
  CHECK_EQ(folder.Mistake("/tmp"), "/tmp:1:1: found a folder, expected a regular file");
  CHECK_EQ(
      folder.Mistake(folder.Path("gone")),
      "gone:1:1: found an error (No such file or directory), expected a file that can be read");
  const std::string large = folder.Write("large", std::string((1 << 20) + 1, ' '));
  CHECK_EQ(folder.Mistake(large),
           "large:1:1: found a file of 1048577 bytes, expected at most 1048576");
  CHECK_EQ(truncate(large.c_str(), int64_t{1} << 40), 0);
  CHECK_EQ(folder.Mistake(large),
           "large:1:1: found a file of 1099511627776 bytes, expected at most 1048576");
}

TEST(PatternsFit) {
  using anyop::FitsPattern;
  CHECK(FitsPattern("*", "") && FitsPattern("*", "rms_norm") && FitsPattern("", ""));
  CHECK(FitsPattern("*norm*", "rms_norm") && FitsPattern("rms_norm", "rms_norm"));
  CHECK(FitsPattern("r?s_*m", "rms_norm") && FitsPattern("**a**b*", "xxaxxab"));
  CHECK(FitsPattern("*ab", "aab") && FitsPattern("a*b*c", "abbbcbc"));
  CHECK(!FitsPattern("?", "") && !FitsPattern("", "a") && !FitsPattern("norm", "rms_norm"));
  CHECK(!FitsPattern("*norm", "norm_") && !FitsPattern("a?", "a") && !FitsPattern("A", "a"));
  std::string stars;
  for (int i = 0; i < 5000; ++i) stars += "*a";
  CHECK(!FitsPattern(stars + "b", std::string(9999, 'a')));  // at once, not in 2^5000 steps
}

TEST(TheNearestNameIsNear) {
  const std::vector<std::string> known = {"rms_norm", "layer_norm", "softmax", "cuda", "cpu"};
  CHECK_EQ(anyop::Nearest("rmsnorm", known), "rms_norm");
  CHECK_EQ(anyop::Nearest("sofmtax", known), "softmax");
  CHECK_EQ(anyop::Nearest("CPU", known), "cpu");
  CHECK_EQ(anyop::Nearest("cdua", known), "cuda");
  CHECK_EQ(anyop::Nearest("gpu", known), "");
  CHECK_EQ(anyop::Nearest("attention", known), "");
  CHECK_EQ(anyop::Nearest("", known), "");
  CHECK_EQ(anyop::Nearest(std::string(1000, 'x'), {std::string(1000, 'x')}), "");
}

TEST(PresetsAreRouteFiles) {
  CHECK_EQ(Join(anyop::PresetNames()), "cpu cuda flaggems native reference triton");
  for (const std::string& name : anyop::PresetNames()) {
    RouteFile routes;
    std::string error;
    CHECK(anyop::ReadRouteFile(name, &routes, &error));
    CHECK_EQ(error, "");
    CHECK(!routes.rules.empty());
    const bool for_aten = name == "flaggems" || name == "native";
    CHECK_EQ(routes.rules[0].pattern, for_aten ? "aten.*" : "*");
  }
  CHECK(anyop::PresetText("hopper") == nullptr);
  RouteFile routes;
  std::string error;
  CHECK(!anyop::ReadRouteFile("cdua", &routes, &error));
  CHECK_EQ(
      error,
      "cdua:1:1: found no preset 'cdua', expected cpu, cuda, flaggems, native, reference, triton, "
      "or a path with '/' or '.' in it; did you mean 'cuda'?");
}

}  // namespace

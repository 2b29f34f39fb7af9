// SPDX-License-Identifier: Apache-2.0
// The whole test framework of the C++ unit tests: one TEST file is one program, and the last line
// counts its checks.
#pragma once

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

inline int passed = 0, failed = 0;

inline bool Note(bool good, const char* file, int line, const std::string& text) {
  ++(good ? passed : failed);
  if (!good) std::printf("%s:%d: failed: %s\n", file, line, text.c_str());
  return good;
}

template <typename A, typename B>
bool Equal(const A& found, const B& expected, const char* file, int line, const char* text) {
  std::ostringstream message;
  message << text << ": found " << found << ", expected " << expected;
  return Note(found == expected, file, line, message.str());
}

struct Registrar {
  Registrar(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

}  // namespace check

#define TEST(name)                                           \
  static void Test##name();                                  \
  static const check::Registrar g_##name(#name, Test##name); \
  static void Test##name()
#define CHECK(condition) check::Note(static_cast<bool>(condition), __FILE__, __LINE__, #condition)
#define CHECK_EQ(found, expected) check::Equal(found, expected, __FILE__, __LINE__, #found)

int main() {
  for (const check::Test& test : check::Tests()) {
    std::printf("%s\n", test.name);
    std::fflush(stdout);
    test.run();
  }
  std::printf("%d passed, %d failed\n", check::passed, check::failed);
  return check::failed || !check::passed;
}

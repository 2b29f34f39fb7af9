// SPDX-License-Identifier: Apache-2.0
// Lines of the log, each written whole.
#include "log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <tuple>

#include "json.h"
#include "router.h"

namespace anyop {
namespace {

using Said = std::set<std::tuple<const Operator*, const Implementation*, std::string, int, int>>;

std::atomic<int> level{0};
std::atomic<void (*)(const char*, const char*)> sink{nullptr};
std::mutex mutex;  // of what follows
int file = -1;
bool to_stderr = false;
Said* said = new Said;
Said* fallbacks = new Said;

bool IsNew(Said* set, const Choice& c) {
  const std::lock_guard<std::mutex> lock(mutex);
  return set->insert({c.op, c.chosen, c.reason, c.device_type, c.device_id}).second;
}

std::string Text(const Choice& c, const std::string& device) {
  const std::string what = c.op->name + " on " + device + ": " + c.chosen->name;
  return what + " (" + c.reason + (c.falls_back ? ", fallback)" : ")");
}

std::string JsonText(const Choice& c, const std::string& device) {
  Json json;
  json.Open('{').Key("operator").Text(c.op->name).Key("backend").Text(c.chosen->backend);
  json.Key("name").Text(c.chosen->name).Key("device").Text(device).Key("reason").Text(c.reason);
  return json.Key("fallback").Boolean(c.falls_back).Close('}').text();
}

// One write, so that lines of several processes do not mix.
void WriteLine(int to, const std::string& text) {
  const std::string line = text + "\n";
  const ssize_t written = write(to, line.data(), line.size());
  static_cast<void>(written);  // a log that is full stops no call
}

}  // namespace

bool SetLog(int new_level, const std::string& path, bool on_stderr, std::string* error) {
  int opened = -1;
  if (!path.empty()) opened = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (!path.empty() && opened < 0) {
    *error = "the log " + path + " cannot be opened: " + std::strerror(errno);
    return false;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (file >= 0) close(file);
    file = opened;
    to_stderr = on_stderr;
    said->clear();
    level = new_level;
  }
  SetWatch(kWatchLog, new_level > 0);
  return true;
}

int LogLevel() { return level.load(std::memory_order_relaxed); }

void SetLogSink(void (*new_sink)(const char*, const char*)) { sink = new_sink; }

void LogChoice(const Choice& choice) {
  const bool is_new = IsNew(said, choice);
  if (!is_new && LogLevel() < 2) return;
  const std::string device =
      DeviceName(choice.device_type) + ":" + std::to_string(choice.device_id);
  const std::string text = Text(choice, device), json = JsonText(choice, device);
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (to_stderr) WriteLine(STDERR_FILENO, "anyop: " + text);
    if (file >= 0) WriteLine(file, json);
  }
  if (const auto say = sink.load()) say(text.c_str(), json.c_str());
}

bool IsNewFallback(const Choice& choice) { return IsNew(fallbacks, choice); }

void LogFallback(const std::string& text) { WriteLine(STDERR_FILENO, "anyop: " + text); }

}  // namespace anyop

// SPDX-License-Identifier: Apache-2.0
// Lines of the log, each written whole.
#include "router/report/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <tuple>

#include "router/report/json.h"
#include "router/router.h"
#include "router/rules/aten_routes.h"

namespace anyop {
namespace {

using Said = std::set<std::tuple<const Operator*, const Implementation*, std::string, int, int>>;

std::atomic<int32_t> level{0};
std::atomic<void (*)(const char*, const char*)> sink{nullptr};
std::mutex mutex;  // of what follows
int file = -1;
bool to_stderr = false;
Said* said = new Said;
Said* fallbacks = new Said;
std::set<std::string>* said_of_aten = new std::set<std::string>;
std::set<std::string>* aten_fallbacks = new std::set<std::string>;

bool IsNew(Said* set, const Choice& c) {
  const std::lock_guard<std::mutex> lock(mutex);
  return set->insert({c.op, c.chosen, c.reason, c.device_type, c.device_id}).second;
}

// One line of the log.
struct Line {
  const std::string& op;
  const std::string& backend;
  const std::string& name;
  const std::string& device;
  const std::string& reason;
  bool falls_back;
};

std::string Text(const Line& line) {
  const std::string what = line.op + " on " + line.device + ": " + line.name;
  return what + " (" + line.reason + (line.falls_back ? ", fallback)" : ")");
}

std::string JsonText(const Line& line) {
  Json json;
  json.Open('{').Key("operator").Text(line.op).Key("backend").Text(line.backend);
  json.Key("name").Text(line.name).Key("device").Text(line.device);
  json.Key("reason").Text(line.reason).Key("fallback").Boolean(line.falls_back);
  return json.Close('}').text();
}

// One write, so that lines of several processes do not mix.
void WriteLine(int to, const std::string& text) {
  const std::string line = text + "\n";
  const ssize_t written = write(to, line.data(), line.size());
  static_cast<void>(written);  // a log that is full stops no call
}

void Say(const std::string& text, const std::string& json) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    if (to_stderr) WriteLine(STDERR_FILENO, "anyop: " + text);
    if (file >= 0) WriteLine(file, json);
  }
  if (const auto say = sink.load()) say(text.c_str(), json.c_str());
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
    said_of_aten->clear();
    level = new_level;
  }
  SetWatch(kWatchLog, new_level > 0);
  TellAtenWatchers(Watched::kLogLevel);
  return true;
}

void ForgetChoices(const Implementation* chosen) {
  const std::lock_guard<std::mutex> lock(mutex);
  for (Said* set : {said, fallbacks}) {
    for (auto at = set->begin(); at != set->end();)
      at = std::get<1>(*at) == chosen ? set->erase(at) : std::next(at);
  }
}

int LogLevel() { return level.load(std::memory_order_relaxed); }

const int32_t* LogLevelPlace() {
  static_assert(sizeof level == sizeof(int32_t) && std::atomic<int32_t>::is_always_lock_free);
  return reinterpret_cast<const int32_t*>(&level);
}

void SetLogSink(void (*new_sink)(const char*, const char*)) { sink = new_sink; }

void LogChoice(const Choice& choice) {
  const bool is_new = IsNew(said, choice);
  if (!is_new && LogLevel() < 2) return;
  const std::string device =
      DeviceName(choice.device_type) + ":" + std::to_string(choice.device_id);
  std::string name = choice.chosen->name;
  if (choice.choice >= 0) name += ":" + std::to_string(choice.choice);
  const Line line = {choice.op->name, choice.chosen->backend, name,
                     device,          choice.reason,          choice.falls_back};
  Say(Text(line), JsonText(line));
}

void LogAtenChoice(const AtenChoice& choice, const std::string& reason, bool falls_back) {
  if (LogLevel() == 0) return;  // it may have been switched off meanwhile
  const std::string op = "aten." + choice.overload;
  const Line line = {op, choice.backend, choice.backend, choice.device, reason, falls_back};
  const std::string text = Text(line);
  bool is_new;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    is_new = said_of_aten->insert(text).second;
  }
  if (is_new || LogLevel() >= 2) Say(text, JsonText(line));
}

bool IsNewFallback(const Choice& choice) { return IsNew(fallbacks, choice); }

void LogFallback(const std::string& text) { WriteLine(STDERR_FILENO, "anyop: " + text); }

void LogFallbackOnce(const std::string& text) {
  bool is_new;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    is_new = aten_fallbacks->insert(text).second;
  }
  if (is_new) LogFallback(text);
}

}  // namespace anyop

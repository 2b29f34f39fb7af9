// SPDX-License-Identifier: Apache-2.0
// A record: a JSON line for each new kind of call when it is first seen, and lines with the counts
// of all kinds: the last one holds. They are written at the end, and whenever the number of calls
// has doubled, so that a process that is killed leaves counts that are at most halved.
#include "router/report/record.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "router/choose/device_below.h"
#include "router/report/json.h"
#include "router/router.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

constexpr size_t kMaxKinds = size_t{1} << 16;  // calls of further kinds are counted together
constexpr int64_t kFirstCounts = 16;           // calls before counts are written first

struct Seen {
  int64_t id;
  int64_t count;
};

struct Recorder {
  std::mutex mutex;  // of all that follows
  std::string path;  // as it was given
  int file = -1;
  std::map<std::string, Seen> seen;
  int64_t total = 0, others = 0;  // calls; those beyond kMaxKinds
};

std::atomic<bool> recording{false};

Recorder& TheRecorder() {
  static auto* recorder = new Recorder;  // never destroyed: calls may outlive main
  return *recorder;
}

// The functions below are called with the lock held.

void Stop(Recorder* recorder) {
  if (recorder->file >= 0) close(recorder->file);
  recorder->file = -1;
  recorder->seen.clear();
  recorder->total = recorder->others = 0;
  recording = false;
}

// One write, so that lines stay whole. A disk that is full stops no call.
void WriteLine(Recorder* recorder, const std::string& text) {
  const std::string line = text + "\n";
  const ssize_t written = write(recorder->file, line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return;
  std::fprintf(stderr, "anyop: the record %s ends here, incomplete: %s\n", recorder->path.c_str(),
               written < 0 ? std::strerror(errno) : "no space left");
  Stop(recorder);
}

void WriteCounts(Recorder* recorder) {
  if (recorder->file < 0 || recorder->seen.empty()) return;
  Json json;
  json.Open('{').Key("counts").Open('{');
  for (const auto& entry : recorder->seen)
    json.Key(std::to_string(entry.second.id)).Number(entry.second.count);
  json.Close('}').Key("others").Number(recorder->others);
  WriteLine(recorder, json.Close('}').text());
}

// The path with the process's id for each %p.
std::string OwnPath(const std::string& path) {
  std::string own = path;
  const std::string id = std::to_string(getpid());
  for (size_t at = own.find("%p"); at != own.npos; at = own.find("%p", at + id.size()))
    own.replace(at, 2, id);
  return own;
}

// Opens the file, if no other process writes it. False with *error set.
bool OpenFile(Recorder* recorder, std::string* error) {
  const std::string own = OwnPath(recorder->path);
  // O_NONBLOCK: a FIFO without a reader is an error, not a wait.
  const int file = open(own.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
  if (file < 0) {
    *error = "the record " + own + " cannot be written: " + std::strerror(errno);
    return false;
  }
  if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(file);
    std::fprintf(
        stderr,
        "anyop: the record %s is being written by another process; calls of process %d are "
        "not recorded (%%p in the name gives each process its own)\n",
        own.c_str(), static_cast<int>(getpid()));
    return true;
  }
  recorder->file = file;
  recording = true;
  return true;
}

// ---- fork and exit ----

void Lock() { TheRecorder().mutex.lock(); }
void Unlock() { TheRecorder().mutex.unlock(); }

// What the parent counted is the parent's. A child has a record of its own where the name has %p,
// from its first call on.
void BeginChild() {
  Recorder& recorder = TheRecorder();
  const bool was = recording;
  Stop(&recorder);
  recording = was && recorder.path.find("%p") != std::string::npos;
  Unlock();
}

void WriteLastCounts() {
  Recorder& recorder = TheRecorder();
  const std::lock_guard<std::mutex> lock(recorder.mutex);
  WriteCounts(&recorder);
}

void WatchProcess() {
  static const bool once =
      pthread_atfork(Lock, Unlock, BeginChild) == 0 && std::atexit(WriteLastCounts) == 0;
  static_cast<void>(once);
}

// ---- lines ----

// inplace: the argument whose memory it is; nullptr: none.
void WriteTensor(Json* json, const AnyopTensor& t, const char* inplace = nullptr) {
  json->Open('{').Key("dtype").Text(DtypeName(AnyopDtypeOf(&t))).Key("shape").Open('[');
  for (int d = 0; d < t.ndim; ++d) json->Number(t.shape[d]);
  json->Close(']').Key("strides").Open('[');
  for (int d = 0; d < t.ndim && t.strides; ++d) json->Number(t.strides[d]);
  json->Close(']');
  if (inplace) json->Key("inplace").Text(inplace);
  json->Close('}');
}

void WriteNumber(Json* json, const Param& p, int64_t i) {
  if (p.kind == kAnyopScalarType) {
    json->Text(DtypeName(static_cast<int>(i)));
  } else if (p.kind == kAnyopBoolean) {
    json->Boolean(i);
  } else {
    json->Number(i);
  }
}

void WriteFloat(Json* json, double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.17g", value);
  value - value == 0 ? json->Raw(text) : json->Text(text);  // JSON has no inf and no nan
}

void WriteScalar(Json* json, const Param& p, const char* field) {
  const bool optional = p.Is(kAnyopOptional) && p.kind != kAnyopStr;
  if (optional && !reinterpret_cast<const AnyopOptionalInt*>(field)->has) {
    json->Raw("null");
  } else if (p.kind == kAnyopFloat) {
    WriteFloat(json, *reinterpret_cast<const double*>(field));
  } else if (p.kind == kAnyopStr) {
    const auto& text = *reinterpret_cast<const AnyopString*>(field);
    text.data ? json->Text({text.data, static_cast<size_t>(text.count)}) : json->Raw("null");
  } else {
    WriteNumber(json, p, *reinterpret_cast<const int64_t*>(field));
  }
}

void WriteList(Json* json, const Param& p, const char* field) {
  const auto& list = *reinterpret_cast<const AnyopIntList*>(field);
  if (!list.data) {
    json->Raw("null");
    return;
  }
  json->Open('[');
  for (int64_t i = 0; i < list.count; ++i) {
    if (p.IsTensor()) {
      const AnyopTensor& t = reinterpret_cast<const AnyopTensor*>(list.data)[i];
      t.ndim < 0 ? static_cast<void>(json->Raw("null")) : WriteTensor(json, t);
    } else if (p.kind == kAnyopFloat) {
      WriteFloat(json, reinterpret_cast<const double*>(list.data)[i]);
    } else if (p.kind == kAnyopStr) {
      const AnyopString& text = reinterpret_cast<const AnyopString*>(list.data)[i];
      json->Text({text.data, static_cast<size_t>(text.count)});
    } else {
      WriteNumber(json, p, list.data[i]);
    }
  }
  json->Close(']');
}

// The name of the argument that a result is written over; nullptr when it has its own memory.
const char* InplaceOf(const Frame& frame, const Facts& facts, const AnyopTensor& result) {
  const Operator& op = *frame.op;
  for (uint32_t i = 0; i < op.num_inputs; ++i) {
    if (!op.params[i].IsTensor() || op.params[i].IsList() || facts.dtypes[i] == kAnyopNoDtype)
      continue;
    if (result.data && frame.tensors[i].data == result.data) return op.params[i].name;
  }
  return nullptr;
}

// All of a call but the values in its tensors.
std::string Signature(const Frame& frame, const Facts& facts, const Implementation& chosen) {
  const Operator& op = *frame.op;
  Json json;
  json.Key("operator").Text(op.name).Key("backend").Text(chosen.name).Key("inputs").Open('{');
  const AnyopTensor* first = nullptr;
  for (uint32_t i = 0; i < op.num_inputs + op.num_outputs; ++i) {
    const Param& p = op.params[i];
    const char* field = frame.args + p.offset;
    if (i == op.num_inputs) json.Close('}').Key("results").Open('{');
    json.Key(p.name);
    const bool tensor = p.IsTensor() && !p.IsList();
    if (tensor && facts.dtypes[i] == kAnyopNoDtype) {
      json.Raw("null");
    } else if (tensor) {
      if (!first) first = &frame.tensors[i];
      const bool result = i >= op.num_inputs;
      const AnyopTensor& t = frame.tensors[i];
      WriteTensor(&json, t, result ? InplaceOf(frame, facts, t) : nullptr);
    } else {
      p.IsList() ? WriteList(&json, p, field) : WriteScalar(&json, p, field);
    }
  }
  json.Close('}').Key("device").Text(DeviceName(first ? RunsAs(chosen, first->device_type) : 1));
  return json.text();
}

}  // namespace

bool SetRecord(const std::string& path, std::string* error) {
  Recorder& recorder = TheRecorder();
  WatchProcess();
  bool good = true;
  {
    const std::lock_guard<std::mutex> lock(recorder.mutex);
    WriteCounts(&recorder);
    Stop(&recorder);
    recorder.path = path;
    if (!path.empty()) good = OpenFile(&recorder, error);
  }
  SetWatch(kWatchRecord, IsRecording());
  return good;
}

namespace {
thread_local int paused = 0;
}  // namespace

void PauseRecord(bool on) { paused += on ? 1 : -1; }

bool IsRecording() { return recording.load(std::memory_order_relaxed); }

void RecordCall(const Frame& frame, const Facts& facts, const Implementation& chosen) {
  if (paused > 0) return;
  std::string signature = Signature(frame, facts, chosen);
  Recorder& recorder = TheRecorder();
  const std::lock_guard<std::mutex> lock(recorder.mutex);
  std::string error;
  if (recorder.file < 0 && (!recording || !OpenFile(&recorder, &error) || recorder.file < 0)) {
    recording = false;
    if (!error.empty()) std::fprintf(stderr, "anyop: %s\n", error.c_str());
    return;
  }
  const auto found = recorder.seen.find(signature);
  if (found != recorder.seen.end()) {
    ++found->second.count;
  } else if (recorder.seen.size() < kMaxKinds) {
    const auto id = static_cast<int64_t>(recorder.seen.size());
    if (id == 0 && ftruncate(recorder.file, 0) != 0) errno = 0;  // a device has no length
    WriteLine(&recorder, "{\"id\":" + std::to_string(id) + "," + signature + "}");
    if (recorder.file < 0) return;
    recorder.seen.emplace(std::move(signature), Seen{id, 1});
  } else {
    ++recorder.others;
  }
  const int64_t total = ++recorder.total;
  if (total >= kFirstCounts && (total & (total - 1)) == 0) WriteCounts(&recorder);
}

}  // namespace anyop

// SPDX-License-Identifier: Apache-2.0
// A record: a JSON line for each new kind of call when it is first seen, and at the end one with
// all counts.
#include "record.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "dtype.h"
#include "json.h"
#include "router.h"

namespace anyop {
namespace {

struct Seen {
  int64_t id;
  int64_t count;
};

std::atomic<bool> recording{false};
std::mutex mutex;  // of what follows
int file = -1;
std::map<std::string, Seen>* seen = new std::map<std::string, Seen>;

void WriteLine(const std::string& text) {
  const std::string line = text + "\n";
  const ssize_t written = write(file, line.data(), line.size());
  static_cast<void>(written);  // a disk that is full stops no call
}

// The caller holds the lock.
void WriteCounts() {
  if (file < 0 || seen->empty()) return;
  Json json;
  json.Open('{').Key("counts").Open('{');
  for (const auto& entry : *seen)
    json.Key(std::to_string(entry.second.id)).Number(entry.second.count);
  WriteLine(json.Close('}').Close('}').text());
}

void WriteTensor(Json* json, const AnyopTensor& t) {
  json->Open('{').Key("dtype").Text(DtypeName(AnyopDtypeOf(&t))).Key("shape").Open('[');
  for (int d = 0; d < t.ndim; ++d) json->Number(t.shape[d]);
  json->Close(']').Key("strides").Open('[');
  for (int d = 0; d < t.ndim && t.strides; ++d) json->Number(t.strides[d]);
  json->Close(']').Close('}');
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
      WriteTensor(&json, frame.tensors[i]);
    } else {
      p.IsList() ? WriteList(&json, p, field) : WriteScalar(&json, p, field);
    }
  }
  json.Close('}').Key("device").Text(DeviceName(first ? first->device_type : 1));
  return json.text();
}

}  // namespace

bool SetRecord(const std::string& path, std::string* error) {
  int opened = -1;
  if (!path.empty())
    opened = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (!path.empty() && opened < 0) {
    *error = "the record " + path + " cannot be written: " + std::strerror(errno);
    return false;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    static const bool at_exit = [] {
      return std::atexit([] {
               const std::lock_guard<std::mutex> last(mutex);
               WriteCounts();
             }) == 0;
    }();
    static_cast<void>(at_exit);
    WriteCounts();
    if (file >= 0) close(file);
    seen->clear();
    file = opened;
    recording = file >= 0;
  }
  SetWatch(kWatchRecord, !path.empty());
  return true;
}

bool IsRecording() { return recording.load(std::memory_order_relaxed); }

void RecordCall(const Frame& frame, const Facts& facts, const Implementation& chosen) {
  std::string signature = Signature(frame, facts, chosen);
  const std::lock_guard<std::mutex> lock(mutex);
  if (file < 0) return;
  const auto found = seen->find(signature);
  if (found != seen->end()) {
    ++found->second.count;
    return;
  }
  const auto id = static_cast<int64_t>(seen->size());
  WriteLine("{\"id\":" + std::to_string(id) + "," + signature + "}");
  seen->emplace(std::move(signature), Seen{id, 1});
}

}  // namespace anyop

// SPDX-License-Identifier: Apache-2.0
// Files in opencl/ of the build cache: a head with the checksum, the identity, the binary. What is
// damaged or another's reads as not there, and is written anew.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "programs.h"

namespace anyop::opencl {
namespace {

constexpr char kMagic[] = "ANYOPCL1";

uint64_t Fnv(const std::string& text, uint64_t hash = 14695981039346656037u) {
  for (unsigned char byte : text) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

// Empty: there is no such place.
std::string Folder() {
  const char* own = std::getenv("ANYOP_CACHE_DIR");
  const char* home = std::getenv("HOME");
  if (own && *own) return own;
  return home && *home ? std::string(home) + "/.cache/anyop" : "";
}

std::string Path(const std::string& identity) {
  char name[40];
  std::snprintf(name, sizeof name, "%016llx%016llx.bin", (unsigned long long)Fnv(identity),
                (unsigned long long)Fnv(identity, identity.size() * 1099511628211u + 1));
  return Folder() + "/opencl/" + name;
}

std::string Body(const std::string& identity, const std::string& binary) {
  return std::to_string(identity.size()) + "\n" + identity + binary;
}

bool MakeFolders(const std::string& path) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0777);
  struct stat found;
  return stat(path.substr(0, path.rfind('/')).c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

}  // namespace

std::string ReadProgram(const std::string& identity) {
  if (Folder().empty()) return "";
  std::ifstream file(Path(identity), std::ios::binary);
  std::stringstream all;
  if (!file || !(all << file.rdbuf())) return "";
  const std::string data = all.str();
  const std::string start = Body(identity, "");
  const size_t head = sizeof kMagic - 1 + sizeof(uint64_t);
  if (data.size() < head + start.size() || data.compare(0, sizeof kMagic - 1, kMagic)) return "";
  uint64_t checksum;
  std::memcpy(&checksum, data.data() + sizeof kMagic - 1, sizeof checksum);
  if (checksum != Fnv(data.substr(head)) || data.compare(head, start.size(), start)) return "";
  return data.substr(head + start.size());
}

void KeepProgram(const std::string& identity, const std::string& binary) {
  const std::string path = Folder().empty() ? "" : Path(identity);
  const std::string part = path + "." + std::to_string(getpid()) + ".part";
  const std::string body = Body(identity, binary);
  const uint64_t checksum = Fnv(body);
  bool kept = !path.empty() && MakeFolders(path);
  if (kept) {
    std::ofstream file(part, std::ios::binary);
    file << kMagic;
    file.write(reinterpret_cast<const char*>(&checksum), sizeof checksum) << body;
    file.close();
    kept = file.good() && std::rename(part.c_str(), path.c_str()) == 0;
    if (!kept) unlink(part.c_str());
  }
  static bool said = false;  // under the lock of programs
  if (!kept && !said)
    std::fprintf(stderr,
                 "anyop: opencl: programs cannot be kept in %s/opencl and are built anew in "
                 "each process; set ANYOP_CACHE_DIR\n",
                 Folder().c_str());
  said = said || !kept;
}

}  // namespace anyop::opencl

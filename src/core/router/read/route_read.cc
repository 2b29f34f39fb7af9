// SPDX-License-Identifier: Apache-2.0
// Reads one route file as it lies on the disk: no pipe, no device, nothing large.
#include "router/read/route_read.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "router/read/route_file.h"

namespace anyop {
namespace {

bool Bad(std::string* error, const std::string& found) {
  *error = "found " + found;
  return false;
}

bool Failed(std::string* error) {
  return Bad(error, "an error (" + std::generic_category().message(errno) +
                        "), expected a file that can be read");
}

bool TooLarge(std::string* error, const std::string& bytes) {
  return Bad(error, "a file of " + bytes + " bytes, expected at most " +
                        std::to_string(kMaxRouteFileBytes));
}

const char* KindName(mode_t mode) {
  return S_ISDIR(mode)    ? "a folder"
         : S_ISFIFO(mode) ? "a pipe"
         : S_ISSOCK(mode) ? "a socket"
                          : "a device";
}

bool CheckStat(const struct stat& stat, std::string* error) {
  if (!S_ISREG(stat.st_mode))
    return Bad(error, std::string(KindName(stat.st_mode)) + ", expected a regular file");
  if (stat.st_size > kMaxRouteFileBytes) return TooLarge(error, std::to_string(stat.st_size));
  return true;
}

// One byte more than a file may have is read, so that one which grows meanwhile is noticed.
bool ReadAll(int fd, std::string* text, std::string* error) {
  constexpr size_t kPieceBytes = 1 << 16;
  size_t bytes = 0;
  while (bytes <= static_cast<size_t>(kMaxRouteFileBytes)) {
    text->resize(bytes + kPieceBytes);
    const ssize_t more = read(fd, &(*text)[bytes], kPieceBytes);
    if (more < 0 && errno == EINTR) continue;
    if (more < 0) return Failed(error);
    bytes += static_cast<size_t>(more);
    if (more == 0) break;
  }
  text->resize(bytes);
  if (bytes <= static_cast<size_t>(kMaxRouteFileBytes)) return true;
  return TooLarge(error, "more than " + std::to_string(kMaxRouteFileBytes));
}

}  // namespace

bool ReadFileText(const std::string& path, FileText* file, std::string* error) {
  if (path.find('\0') != path.npos) return Bad(error, "a NUL in the path, expected none");
  struct stat stat;
  // Asked before it is opened too: to open a device may have an effect.
  if (::stat(path.c_str(), &stat) != 0) return Failed(error);
  if (!CheckStat(stat, error)) return false;
  int fd;
  do {
    fd = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) return Failed(error);
  const bool good = fstat(fd, &stat) != 0
                        ? Failed(error)
                        : CheckStat(stat, error) && ReadAll(fd, &file->text, error);
  close(fd);
  file->device = stat.st_dev;
  file->inode = stat.st_ino;
  return good;
}

}  // namespace anyop

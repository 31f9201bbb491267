// A folder that goes with its owner.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

struct TemporaryFolder {
    TemporaryFolder() {
        char name[] = "/tmp/smexec-test-XXXXXX";
        path = ::mkdtemp(name);
    }
    ~TemporaryFolder() { std::filesystem::remove_all(path); }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;
    std::string path;
};

// Strangers of every kind, while a job starts and while it runs: the job ends well each time, to the same
// bits, and its log tells of them.
#include <cstdlib>
#include <map>

#include "core/random.h"
#include "tests/processes/callers.h"
#include "tests/processes/processes.h"

namespace {

using namespace processes;
using Catch::Contains;

const std::string token = "correct horse battery staple";

struct Training {
    Folder folder;
    std::string plan = write_plan(folder.path + "/plan.toml", {"gpt", "", "data_parallel = 2", ""});
    std::string states = folder.path + "/states";
    int port = free_port();

    Process rank(int r, const std::string& secret, int steps = 30) const {
        std::vector<std::string> variables = {"RANK=" + std::to_string(r), "WORLD_SIZE=2",
                                              "MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", port)};
        if (!secret.empty()) variables.push_back("SMEXEC_TOKEN=" + secret);
        return start({smexec, plan, "--no-compare", "--steps", std::to_string(steps), "--join-limit", "20",
                      "--checkpoint", states, "--resume"},
                     variables, fmt::format("{}/rank{}", folder.path, r));
    }
};

// A build without libcrypto refuses tokens, and has only the tests without one.
bool has_tokens() {
    if (!exec::transport::can_authenticate()) WARN("skipped: this build has no libcrypto");
    return exec::transport::can_authenticate();
}

// The losses of 30 steps that nobody disturbed.
const std::vector<double>& undisturbed() {
    static const std::vector<double> losses = [] {
        const Training training;
        const std::string secret = exec::transport::can_authenticate() ? token : "";
        std::vector<Process> ranks = {training.rank(0, secret), training.rank(1, secret)};
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        return losses_of(training.states);
    }();
    return losses;
}

// A frame as socket_wire.cpp has them, with a payload of 900 GB announced.
std::string giant_header() {
    struct {
        std::uint32_t magic = 0x534D5031, kind = 0;
        std::uint64_t tag = 0, bytes = 900'000'000'000;
    } header;
    return {reinterpret_cast<const char*>(&header), sizeof header};
}

// What the first version of the protocol took for a rank.
std::string old_report(int rank) {
    struct {
        char magic[8] = {'s', 'm', 'e', 'x', 'e', 'c', '0', '1'};
        std::int32_t rank = 0, size = 2, port = 40000;
        char host[256] = "elsewhere";
    } report;
    report.rank = rank;
    return {reinterpret_cast<const char*>(&report), sizeof report};
}

// All that can be said without the token. The descriptors are kept open by the caller.
std::vector<int> call_in_every_way(int port, const Introduction& recorded) {
    std::vector<int> open;
    const auto bytes = [&](const std::string& words) {
        open.push_back(connect_to(port));
        if (!words.empty()) say(open.back(), words.data(), words.size());
    };
    bytes("");              // silence
    bytes(old_report(99));  // a rank that nobody knows, in 276 bytes
    bytes(old_report(1));   // the absent rank
    bytes(giant_header());
    bytes(giant_header().substr(0, 11));  // half a frame
    bytes("GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    std::string noise;
    for (int i = 0; i < 5000; ++i) noise += static_cast<char>(i * 2654435761U >> 13);
    bytes(noise);
    // The right words under another token, for the absent rank and for one that nobody knows.
    for (const int rank : {1, 99}) {
        open.push_back(connect_to(port));
        CHECK_FALSE(introduce(open.back(), report_of(rank, 2), "another secret, as long").was_accepted);
    }
    // What a rank of this job said to another start, word by word.
    open.push_back(connect_to(port));
    say(open.back(), &recorded.greeting, sizeof recorded.greeting);
    say(open.back(), &recorded.answer, sizeof recorded.answer);
    // A greeting, and then nothing.
    open.push_back(connect_to(port));
    say(open.back(), &recorded.greeting, sizeof recorded.greeting);
    // Gone in the middle.
    open.push_back(connect_to(port));
    say(open.back(), &recorded.greeting, 20);
    ::close(open.back());
    open.pop_back();
    return open;
}

// A rank's introduction that was listened to: to a start that it then left.
Introduction record_one() {
    const Training training;
    std::vector<Process> first = {training.rank(0, token)};
    const int descriptor = connect_to(training.port);
    const Introduction said = introduce(descriptor, report_of(1, 2), token);
    CHECK(said.was_accepted);
    ::close(descriptor);
    CHECK(wait_for_all(first, std::chrono::seconds(20)));
    CHECK(first[0].code() == 4);
    return said;
}

// What that rank said and a frame of data behind it, with bits turned, cut off, doubled or put in the wrong
// order; or noise.
std::string altered(const Introduction& recorded, core::Random& random) {
    const auto bytes_of = [](const auto& words) {
        return std::string(reinterpret_cast<const char*>(&words), sizeof words);
    };
    const std::string greeting = bytes_of(recorded.greeting), answer = bytes_of(recorded.answer);
    std::string words = greeting + answer;
    switch (random.below(6)) {
        case 0: words += giant_header(); break;
        case 1: words = answer + greeting; break;
        case 2: words = greeting + greeting + answer; break;
        case 3: words = giant_header() + words; break;
        case 4:
            for (char& one : words) one = static_cast<char>(random.below(256));
            break;
        default: break;
    }
    for (std::uint64_t flips = random.below(8); flips > 0; --flips)
        words[random.below(words.size())] ^= static_cast<char>(1 << random.below(8));
    if (random.below(3) == 0) words.resize(random.below(words.size()));
    return words;
}

}  // namespace

TEST_CASE("strangers of every kind at the start are dropped and told, and the job ends to the same bits") {
    if (!has_tokens()) return;
    const Introduction recorded = record_one();
    const Training training;
    std::vector<Process> ranks = {training.rank(0, token)};
    const std::vector<int> strangers = call_in_every_way(training.port, recorded);
    ranks.push_back(training.rank(1, token));
    CHECK(wait_for_all(ranks, std::chrono::seconds(30)));
    const std::string told = content_of(ranks[0].err);
    INFO(told << content_of(ranks[1].err));
    for (const Process& rank : ranks) CHECK(rank.code() == 0);
    CHECK(losses_of(training.states) == undisturbed());
    CHECK_THAT(told, Contains("rank 0: a caller at 127.0.0.1 is no rank of this job and was dropped: it does "
                              "not have this job's token") &&
                         Contains("it does not speak this version of this program's protocol") &&
                         Contains("it went after 20 bytes"));
    for (const int descriptor : strangers) ::close(descriptor);
}

TEST_CASE("callers with altered introductions, at every moment of a job, leave it as it is") {
    // SMSIM_STRANGERS=200: as many callers. They say what a rank of another start said, altered at random.
    if (!has_tokens()) return;
    const Introduction recorded = record_one();
    const char* const asked = std::getenv("SMSIM_STRANGERS");
    const int wanted = asked ? std::atoi(asked) : 24;
    core::Random random(static_cast<std::uint64_t>(wanted));
    int before_the_last_rank = 0, beside_it = 0, jobs = 0;
    const auto call = [&](int descriptor) {
        if (descriptor < 0) return false;
        const std::string words = altered(recorded, random);
        // The rank may have hung up on an earlier word.
        if (!words.empty()) (void)::send(descriptor, words.data(), words.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        return true;
    };
    while (before_the_last_rank + beside_it < wanted) {
        const Training training;
        std::vector<int> open;
        std::vector<Process> ranks = {training.rank(0, token)};
        constexpr int a_job = 12;
        for (int i = 0; i < a_job; ++i) {
            open.push_back(connect_to(training.port));
            before_the_last_rank += call(open.back());
            if (random.below(3) == 0) {
                ::close(open.back());
                open.pop_back();
            }
        }
        ranks.push_back(training.rank(1, token));
        // Until nobody listens any more: the job runs then.
        for (int i = 0; i < a_job; ++i) {
            const int descriptor = try_to_connect(training.port, std::chrono::milliseconds(5));
            if (!call(descriptor)) break;
            open.push_back(descriptor);
            ++beside_it;
            std::this_thread::sleep_for(std::chrono::milliseconds(random.below(15)));
        }
        CHECK(wait_for_all(ranks, std::chrono::seconds(30)));
        INFO(content_of(ranks[0].err) << content_of(ranks[1].err));
        for (const Process& rank : ranks) CHECK(rank.code() == 0);
        CHECK(losses_of(training.states) == undisturbed());
        for (const int descriptor : open) ::close(descriptor);
        ++jobs;
    }
    WARN(before_the_last_rank << " callers before the last rank was started, " << beside_it
                              << " while it joined, " << jobs << " jobs");
}

TEST_CASE("hundreds of silent callers at a time keep no rank from joining") {
    if (!has_tokens()) return;
    const Training training;
    std::vector<Process> ranks = {training.rank(0, token)};
    std::vector<int> crowd;
    for (int i = 0; i < 300; ++i) crowd.push_back(connect_to(training.port));
    ranks.push_back(training.rank(1, token));
    CHECK(wait_for_all(ranks, std::chrono::seconds(30)));
    INFO(content_of(ranks[0].err) << content_of(ranks[1].err));
    for (const Process& rank : ranks) CHECK(rank.code() == 0);
    CHECK_THAT(content_of(ranks[0].err), Contains("too many callers at a time"));
    CHECK_THAT(content_of(ranks[0].err), Contains("more callers were dropped"));
    for (const int descriptor : crowd) ::close(descriptor);
    CHECK(losses_of(training.states) == undisturbed());
}

TEST_CASE("while a job runs nobody listens") {
    if (!has_tokens()) return;
    const Training training;
    std::vector<Process> ranks = {training.rank(0, token, 1000000), training.rank(1, token, 1000000)};
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    CHECK(try_to_connect(training.port, std::chrono::milliseconds(200)) == -1);
    for (const Process& rank : ranks) {
        // The state 0A of /proc/net/tcp is that of listening sockets; a rank has none.
        std::string listening;
        std::map<std::string, bool> inodes;
        for (const fs::directory_entry& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", rank.id))) {
            std::error_code gone;
            const std::string target = fs::read_symlink(entry.path(), gone).string();
            if (target.starts_with("socket:[")) inodes[target.substr(8, target.size() - 9)] = true;
        }
        for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) {
            std::istringstream lines(content_of(table));
            for (std::string line; std::getline(lines, line);) {
                std::istringstream words(line);
                std::vector<std::string> fields;
                for (std::string word; words >> word;) fields.push_back(word);
                if (fields.size() > 9 && fields[3] == "0A" && inodes.contains(fields[9])) listening += line;
            }
        }
        CHECK(listening.empty());
    }
    for (const Process& rank : ranks) ::kill(rank.id, SIGTERM);
    CHECK(wait_for_all(ranks, std::chrono::seconds(20)));
    for (const Process& rank : ranks) CHECK(rank.code() == 4);
}

TEST_CASE("without a token rank 0 warns, and a report of no rank is dropped all the same") {
    const Training training;
    std::vector<Process> ranks = {training.rank(0, "")};
    const int unknown = connect_to(training.port), other_size = connect_to(training.port);
    introduce(unknown, report_of(99, 2));
    introduce(other_size, report_of(1, 5));
    ranks.push_back(training.rank(1, ""));
    CHECK(wait_for_all(ranks, std::chrono::seconds(30)));
    const std::string told = content_of(ranks[0].err);
    INFO(told);
    for (const Process& rank : ranks) CHECK(rank.code() == 0);
    CHECK_THAT(told, Contains("warning: the launcher gave no token") && Contains("rank 99 of 2") &&
                         Contains("rank 1 of 5"));
    CHECK(losses_of(training.states) == undisturbed());
    ::close(unknown);
    ::close(other_size);
}

TEST_CASE("ranks with different tokens do not join, and both say why") {
    if (!has_tokens()) return;
    const Training training;
    std::vector<Process> ranks = {training.rank(0, token)};
    ranks.push_back(training.rank(1, "another secret, as long"));
    std::vector<Process> second = {ranks[1]};
    CHECK(wait_for_all(second, std::chrono::seconds(10)));
    CHECK(second[0].code() == 4);
    CHECK_THAT(content_of(second[0].err), Contains("do not have the same job token"));
    ranks[1] = training.rank(1, token);
    std::vector<Process> good = {ranks[0], ranks[1]};
    CHECK(wait_for_all(good, std::chrono::seconds(30)));
    for (const Process& rank : good) CHECK(rank.code() == 0);
    CHECK_THAT(content_of(good[0].err), Contains("it does not have this job's token"));
}

TEST_CASE("a caller that listens where rank 0 should, and has no token, gets no rank to believe it") {
    if (!has_tokens()) return;
    const Training training;
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<std::uint16_t>(training.port));
    REQUIRE(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener, 8) == 0);
    std::vector<Process> ranks = {training.rank(1, token)};
    const int called = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    exec::transport::Greeting greeting, own;
    REQUIRE(::recv(called, &greeting, sizeof greeting, MSG_WAITALL) == static_cast<ssize_t>(sizeof greeting));
    say(called, &own, sizeof own);
    exec::transport::Answer answer;
    REQUIRE(::recv(called, &answer, sizeof answer, MSG_WAITALL) == static_cast<ssize_t>(sizeof answer));
    exec::transport::Verdict verdict;
    verdict.is_accepted = 1;
    verdict.proof = answer.proof;  // its own words, sent back
    say(called, &verdict, sizeof verdict);
    CHECK(wait_for_all(ranks, std::chrono::seconds(10)));
    CHECK(ranks[0].code() == 4);
    CHECK_THAT(content_of(ranks[0].err), Contains("do not have the same job token"));
    ::close(called);
    ::close(listener);
}

TEST_CASE("a token's file is made by rank 0, and one that others may read or that is short is refused") {
    if (!has_tokens()) return;
    const Training training;
    const std::string file = training.folder.path + "/token";
    const auto command = [&](const std::vector<std::string>& more) {
        std::vector<std::string> arguments = {smexec,         training.plan, "--no-compare", "--steps", "2",
                                              "--token-file", file};
        arguments.insert(arguments.end(), more.begin(), more.end());
        return arguments;
    };
    std::vector<Process> ranks = start_ranks(command({}), 2, training.folder.path);
    REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
    for (const Process& rank : ranks) CHECK(rank.code() == 0);
    CHECK(content_of(file).size() == 65);  // 256 bits in hexadecimal digits, and the end of the line
    CHECK((fs::status(file).permissions() & (fs::perms::group_all | fs::perms::others_all)) ==
          fs::perms::none);
    CHECK(content_of(ranks[0].err).find("no token") == std::string::npos);
    SECTION("others may read it") {
        fs::permissions(file, fs::perms::others_read, fs::perm_options::add);
        ranks = start_ranks(command({}), 2, training.folder.path);
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        for (const Process& rank : ranks) CHECK(rank.code() == 2);
        CHECK_THAT(content_of(ranks[0].err),
                   Contains("others than its owner may use") && Contains("chmod 600"));
    }
    SECTION("it is short") {
        std::ofstream(file) << "secret";
        ranks = start_ranks(command({}), 2, training.folder.path);
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        for (const Process& rank : ranks) CHECK(rank.code() == 2);
        CHECK_THAT(content_of(ranks[0].err), Contains("has 6 characters"));
    }
    SECTION("an interface that is not there") {
        ranks = start_ranks(command({"--interface", "nosuch0"}), 2, training.folder.path);
        REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
        for (const Process& rank : ranks) CHECK(rank.code() == 2);
        CHECK_THAT(content_of(ranks[0].err), Contains("no interface or address 'nosuch0'") && Contains("lo"));
    }
    SECTION("one that is there") {
        for (const char* interface : {"lo", "127.0.0.1", "all"}) {
            ranks = start_ranks(command({"--interface", interface}), 2, training.folder.path);
            REQUIRE(wait_for_all(ranks, std::chrono::seconds(30)));
            for (const Process& rank : ranks) CHECK(rank.code() == 0);
        }
    }
    SECTION("among threads it has no meaning") {
        const Process alone = run(command({"--ranks-from", "threads"}), training.folder.path + "/log");
        CHECK(alone.code() == 2);
        CHECK_THAT(content_of(alone.err), Contains("--token-file is of --ranks-from env"));
    }
}

TEST_CASE("ranks that are lost before they join are not waited for longer than the join limit") {
    if (!has_tokens()) return;
    const Training training;
    std::vector<Process> first = {
        start({smexec, training.plan, "--no-compare", "--join-limit", "2"},
              {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
               fmt::format("MASTER_PORT={}", training.port), "SMEXEC_TOKEN=" + token},
              training.folder.path + "/alone")};
    const Clock::time_point begin = Clock::now();
    CHECK(wait_for_all(first, std::chrono::seconds(10)));
    CHECK(Clock::now() - begin < std::chrono::seconds(8));
    CHECK(first[0].code() == 4);
    CHECK_THAT(content_of(first[0].err), Contains("of 2 ranks these did not report to rank 0 in time: 1"));
}

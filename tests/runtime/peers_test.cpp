#include <gtest/gtest.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "pipewright/base/error.h"
#include "runtime/world/peers.h"
#include "runtime/worlds.h"

namespace pipewright {
namespace {

using EventKind = Peers::Event::Kind;
using PeersPtr = std::unique_ptr<Peers>;
constexpr std::chrono::seconds kSoon{20};

/// Each on a thread of its own, with what connects it to the others.
void expect_among(int size, const std::function<void(PeersPtr&)>& part) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::function<void()>> parts;
  for (int rank = 0; rank < size; ++rank) {
    parts.emplace_back([&, rank] {
      auto peers = std::make_unique<Peers>(*store, rank, size, "127.0.0.1", kSoon);
      part(peers);
    });
  }
  for (const std::string& error : side_by_side(parts)) EXPECT_EQ(error, "");
}

/// The next that is not only a wake-up.
Peers::Event next(Peers& peers) {
  const auto deadline = std::chrono::steady_clock::now() + kSoon;
  while (true) {
    Peers::Event event = peers.next(deadline);
    if (event.kind != EventKind::Woken) return event;
  }
}

TEST(WorldPeers, HearEachOtherInOrder) {
  const std::string large(3 << 20, 'x');
  expect_among(4, [&](const PeersPtr& peers) {
    const std::string own = std::to_string(peers->rank());
    peers->send_all(own);
    peers->send_all("");
    peers->send_all(large + own);
    std::map<int, std::vector<std::string>> heard;
    for (int words = 0; words < 9 || !peers->all_sent();) {
      const Peers::Event event = next(*peers);
      if (event.kind != EventKind::Word) continue;  // who has heard all goes
      heard[event.from].push_back(event.text);
      ++words;
    }
    EXPECT_EQ(heard.size(), 3U);
    for (const auto& [from, texts] : heard) {
      const std::string other = std::to_string(from);
      EXPECT_TRUE(texts == (std::vector<std::string>{other, "", large + other})) << from;
    }
  });
}

TEST(WorldPeers, NoticeWhoGoesAfterItsLastWord) {
  expect_among(3, [&](PeersPtr& peers) {
    if (peers->rank() == 1) {
      peers->send_all("last words");
      peers.reset();
      return;
    }
    const auto next_of_1 = [&] {
      Peers::Event event = next(*peers);
      while (event.from != 1) event = next(*peers);  // the third one may be gone, too
      return event;
    };
    const Peers::Event word = next_of_1();
    EXPECT_EQ(word.kind, EventKind::Word);
    EXPECT_EQ(word.text, "last words");
    EXPECT_EQ(next_of_1().kind, EventKind::Gone);
    peers->send(1, "to nobody");
    EXPECT_TRUE(peers->all_sent());
  });
}

TEST(WorldPeers, DoNotWaitForOneThatDoesNotRead) {
  std::atomic<bool> sent = false;
  expect_among(2, [&](const PeersPtr& peers) {
    if (peers->rank() == 1) {
      while (!sent) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    const std::string word(4 << 20, 'x');
    for (int count = 0; count < 40; ++count) peers->send(1, word);
    EXPECT_FALSE(peers->all_sent());
    sent = true;
  });
}

TEST(WorldPeers, AreLateWhereNothingComes) {
  expect_among(2, [&](const PeersPtr& peers) {
    if (peers->rank() == 1) {
      EXPECT_EQ(next(*peers).text, "done");
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(peers->next(start + std::chrono::milliseconds(50)).kind, EventKind::Late);
    peers->wake();
    EXPECT_EQ(peers->next(std::nullopt).kind, EventKind::Woken);
    peers->send_all("done");
    EXPECT_EQ(next(*peers).kind, EventKind::Gone);
  });
}

TEST(WorldPeers, TakeNobodyWhoDoesNotKnowTheToken) {
  const auto intrude = [](c10d::Store& store) {
    const std::vector<std::uint8_t> bytes = store.get("peer/0");
    const std::string place(bytes.begin(), bytes.end());
    const std::size_t space = place.find(' ');
    const Addresses all = find_addresses(
        place.substr(0, space), static_cast<std::uint16_t>(std::stoi(place.substr(space + 1))), SOCK_STREAM);
    const Socket stranger = connect_within(*all, kSoon);
    EXPECT_TRUE(stranger.open());
    const std::string hello(200, '1');
    EXPECT_GT(send(stranger.descriptor(), hello.data(), hello.size(), MSG_NOSIGNAL), 0);
    store.set("intruded", std::vector<std::uint8_t>{1});
  };
  const auto store = c10::make_intrusive<c10d::HashStore>();
  // Rank 0 listens, and the stranger comes before rank 1 does.
  const auto errors = side_by_side({[&] {
                                      Peers peers(*store, 0, 2, "127.0.0.1", kSoon);
                                      const Peers::Event event = next(peers);
                                      EXPECT_EQ(event.from, 1);
                                      EXPECT_EQ(event.text, "the real one");
                                    },
                                    [&] { intrude(*store); },
                                    [&] {
                                      store->wait({"intruded"});
                                      Peers peers(*store, 1, 2, "127.0.0.1", kSoon);
                                      peers.send(0, "the real one");
                                      EXPECT_EQ(next(peers).kind, EventKind::Gone);
                                    }});
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(WorldPeers, SayWhenOthersDoNotCome) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  EXPECT_THROW(Peers(*store, 0, 3, "127.0.0.1", std::chrono::milliseconds(100)), Error);
}

}  // namespace
}  // namespace pipewright

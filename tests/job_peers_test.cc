// SPDX-License-Identifier: Apache-2.0
// Where root's helper has a job's peers from, with a program in the place of monarch_account.
#include "runtime/node/job_peers.h"

#include "runtime/node/start.h"
#include "tests/node_fixture.h"

namespace monarch {
namespace {

const std::string kKey = "0123456789abcdef" + std::string(48, 'f');

class JobPeersTest : public NodeTest {
 protected:
  void SetUp() override {
    NodeTest::SetUp();
    config_.enabled = true;
    lists("n1 10.0.0.1\nn2 10.0.0.2\nn3 -\n");
  }
  // What the program prints, unless it does `body` instead.
  void lists(const std::string& text, const std::string& body = "") {
    scratch_.file("list", text);
    says("env >" + (scratch_ / "variables") + "\n" + (body.empty() ? "cat " + (scratch_ / "list") : body));
  }
  Result<AgentPeers> find(const ToldOfPeers& told, const std::string& node = "n2",
                          int patience_ms = 20000) const {
    JobOnNode job = record(1).job;
    job.node = node;
    PeerSearch search(config_, told, 3, program_, "/etc/slurm.conf");
    return search.finish(job, 7, patience_ms);
  }
  std::string why_none(const ToldOfPeers& told = {kKey, "n[1-3]"}, const std::string& node = "n2",
                       int patience_ms = 20000) const {
    const Result<AgentPeers> found = find(told, node, patience_ms);
    EXPECT_TRUE(no_child_is_left());
    return found.ok() ? "" : found.error().text;
  }

  PeerConfig config_;
};

TEST_F(JobPeersTest, AreTheNodesOfTheJobInSlurmsOrder) {
  const Result<AgentPeers> found = find({kKey, "n[1-3]"});
  ASSERT_TRUE(found.ok()) << found.error().text;
  EXPECT_EQ(found->nodes, "n1 10.0.0.1\nn2 10.0.0.2\nn3 -\n");
  EXPECT_EQ(found->count, 3u);
  EXPECT_EQ(found->own, 1u);
  EXPECT_EQ(found->identity, "c.1.7");
  EXPECT_EQ(found->key[0], 0x01);
  EXPECT_EQ(found->key[7], 0xef);
  EXPECT_EQ(found->key[31], 0xff);
  EXPECT_EQ(contents(scratch_ / "asked"), "--nodes n[1-3]\n");
  const std::string variables = contents(scratch_ / "variables");
  EXPECT_NE(variables.find("SLURM_CONF=/etc/slurm.conf\n"), std::string::npos) << variables;
  EXPECT_EQ(find({kKey, "n[1-3]"}, "n1")->own, 0u);
  EXPECT_EQ(find({kKey, "n1,n2"}, "n1")->own, 0u);
}

TEST_F(JobPeersTest, WhatIsMissingIsToldWithoutAskingForTheRest) {
  EXPECT_EQ(why_none({"", "n[1-3]"}),
            "no key has come with the job; give --monarch-dataset when the job is submitted");
  for (const std::string& key : {kKey + "0", kKey.substr(1), kKey.substr(1) + "g", kKey.substr(1) + "F"})
    EXPECT_TRUE(why_none({key, "n[1-3]"}).starts_with("no key has come")) << key;
  EXPECT_EQ(why_none({kKey, ""}), "Slurm has not told which nodes the job has");
  EXPECT_EQ(why_none({kKey, "n2"}), "the job has one node");
  {
    PeerSearch search(config_, {kKey, ""}, 1, program_, "");
    EXPECT_EQ(search.finish(record(1).job, 0, 0).error().text, "the job has one node");
  }
  program_ = "";
  EXPECT_EQ(why_none(), "there is no --account-program to list the job's nodes");
  config_.enabled = false;
  EXPECT_EQ(why_none(), "[peer] enabled = off");
  EXPECT_FALSE(exists(scratch_ / "asked"));
}

TEST_F(JobPeersTest, AListThatIsNoneIsNotBelieved) {
  const std::string unreadable = "the list of the job's nodes cannot be read";
  for (const char* text :
       {"n1\nn2 ::1\n", "n1 \nn2 ::1\n", "n1 host\nn2 ::1\n", " ::1\nn2 ::1\n", "n1 ::1 x\nn2 ::1\n",
        "\nn2 ::1\n", "n/1 ::1\nn2 ::1\n", ".n ::1\nn2 ::1\n", "n[1 -\nn2 ::1\n"}) {
    lists(text);
    EXPECT_EQ(why_none(), unreadable) << text;
  }
  for (const char* text : {"n1 ::1\nn3 ::1\n", ""}) {
    lists(text);
    EXPECT_EQ(why_none(), "this node is not on the list of the job's nodes");
  }
  lists("n1 ::1\nn2 -\n");
  EXPECT_EQ(why_none(), "this node has no address");
  lists("n2 ::1\n");
  EXPECT_EQ(why_none(), "the job has one node");
}

TEST_F(JobPeersTest, AProgramThatFailsOrHangsIsNotWaitedFor) {
  const std::string failed = "monarch_account --nodes has failed; run it by hand to see why";
  for (const char* ends : {"exit 1", "kill -9 $$"}) {
    lists("n1 ::1\nn2 ::1\n", "cat " + (scratch_ / "list") + "; " + ends);
    EXPECT_EQ(why_none(), failed);
  }
  lists("", "exec sleep 600");
  EXPECT_EQ(why_none({kKey, "n[1-3]"}, "n2", 50),
            "the addresses of the job's nodes could not be had in 50 ms");
  lists("", "exec >&-; : >" + (scratch_ / "silent") + "; exec sleep 600");
  {
    JobOnNode job = record(1).job;
    job.node = "n2";
    PeerSearch search(config_, {kKey, "n[1-3]"}, 3, program_, "");
    EXPECT_TRUE(eventually([&] { return exists(scratch_ / "silent"); }));
    EXPECT_EQ(search.finish(job, 7, 50).error().text,
              "the addresses of the job's nodes could not be had in 50 ms")
        << "it says no more, and stays";
  }
  EXPECT_TRUE(no_child_is_left());
  lists("", "exec yes");
  EXPECT_EQ(why_none(), "the list of the job's nodes has no end");
  program_ = scratch_ / "nothing";
  EXPECT_EQ(why_none(), "run " + program_ + ": No such file or directory");
  lists("", "exec sleep 600");
  { const PeerSearch search(config_, {kKey, "n[1-3]"}, 3, program_, ""); }
  EXPECT_TRUE(no_child_is_left()) << "of a start that failed";
}

TEST_F(JobPeersTest, ANodeThatIsItsOwnLoopbackIsReachedByOthersAllTheSame) {
  const auto listed = [&](const std::string& text) {
    lists(text);
    const Result<AgentPeers> found = find({kKey, "n[1-3]"});
    return found.ok() ? found->nodes : found.error().text;
  };
  EXPECT_EQ(listed("n1 10.0.0.1\nn2 127.0.1.1\n"), "n1 10.0.0.1\nn2 0.0.0.0\n");
  EXPECT_EQ(listed("n1 fd00::1\nn2 ::1\nn3 -\n"), "n1 fd00::1\nn2 ::\nn3 -\n");
  EXPECT_EQ(listed("n1 127.0.0.1\nn2 127.0.0.1\nn3 -\n"), "n1 127.0.0.1\nn2 127.0.0.1\nn3 -\n")
      << "on one machine";
  EXPECT_EQ(listed("n1 127.0.0.1\nn2 10.0.0.2\n"), "n1 127.0.0.1\nn2 10.0.0.2\n");
}

TEST_F(JobPeersTest, WhatThePrologIsToldIsNotedIfItHasAKey) {
  StartRequest request;
  request.state_dir = state_.path();
  request.job = record(1).job;
  request.datasets = "/data";
  request.peers = {kKey, "n[1-3]"};
  const auto noted = [&] {
    const ToldOfPeers told = recorded(request.job).notes.peers;
    return told.key + " " + told.nodes;
  };
  ASSERT_TRUE(note_wanted(request).ok());
  EXPECT_EQ(noted(), kKey + " n[1-3]");
  EXPECT_EQ(mode_of(state_.path() + "/jobs/c.1.n1/record.json"), 0600u);
  for (const char* key : {"", "short"}) {
    request.peers.key = kKey;
    ASSERT_TRUE(note_wanted(request).ok());
    request.peers.key = key;
    ASSERT_TRUE(note_wanted(request).ok());
    EXPECT_EQ(noted(), " ") << "that of an earlier run is gone";
  }
}

TEST_F(JobPeersTest, WhatTheHelperWasToldIsNotLeftInItsEnvironment) {
  ::setenv("MONARCH_JOB_KEY", kKey.c_str(), 1);
  ::setenv("MONARCH_JOB_NODES", "n[1-3]", 1);
  const char* place = ::getenv("MONARCH_JOB_KEY");
  const ToldOfPeers told = {take_told("MONARCH_JOB_KEY"), take_told("MONARCH_JOB_NODES")};
  EXPECT_EQ(told.key, kKey);
  EXPECT_EQ(told.nodes, "n[1-3]");
  EXPECT_EQ(*place, '\0') << "/proc shows that memory";
  EXPECT_FALSE(::getenv("MONARCH_JOB_KEY") || ::getenv("MONARCH_JOB_NODES"));
  EXPECT_EQ(take_told("MONARCH_JOB_KEY"), "");
}

}  // namespace
}  // namespace monarch

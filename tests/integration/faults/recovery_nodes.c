/* SPDX-License-Identifier: Apache-2.0 */
/* Holds between two nodes whose daemons have keepers, and are killed. */
#include <sys/wait.h>

#include "tests/integration/faults/recovery.h"

TestSuite(recovery_nodes, .timeout = SUITE_SECONDS(120));

#define BYTES ((size_t)100000)

struct side {
    struct test_keeper keeper;
    struct test_node node;
    char flag[200], more[64], address[65], state_dir[160], socket[160];
    const char *flags[4];
};

static struct side owners, holders;
static rdt *producer, *reader;

static void side_start(struct side *side, const char *name)
{
    bool again = side->state_dir[0] != '\0';

    node_start(&side->node, &(struct node_options){.name = name,
                                                   .flags = side->flags,
                                                   .listen = side->address,
                                                   .state_dir = again ? side->state_dir : NULL,
                                                   .socket = again ? side->socket : NULL,
                                                   .awaited = again});
    memcpy(side->state_dir, side->node.state_dir, sizeof side->state_dir);
    memcpy(side->socket, side->node.socket, sizeof side->socket);
}

/* more: a further flag, or NULL */
static void side_begin(struct side *side, const char *name, const char *more)
{
    keeper_start(&side->keeper);
    free_address(0, "127.0.0.1", side->address);
    (void)snprintf(side->flag, sizeof side->flag, "--keeper=%s", side->keeper.socket);
    side->flags[0] = side->flag;
    side->flags[1] = "--backoff-max=500ms";
    side->flags[2] = more;
    side_start(side, name);
}

static void begin_both(const char *more)
{
    side_begin(&owners, "owner", more);
    side_begin(&holders, "holder", more);
    producer = node_client(&owners.node, "producer");
    reader = node_client(&holders.node, "reader");
}

static void end_both(void)
{
    rdt_close(producer);
    rdt_close(reader);
    node_stop(&owners.node);
    node_stop(&holders.node);
    keeper_stop(&owners.keeper, SIGTERM);
    keeper_stop(&holders.keeper, SIGTERM);
}

static void kill_and_start(struct side *side, const char *name)
{
    node_kill(&side->node, SIGKILL);
    side_start(side, name);
}

static struct rdt_ref put_bytes(const char *id, uint32_t seed)
{
    char *bytes = malloc(BYTES);

    fill_pattern(bytes, BYTES, seed);
    struct rdt_ref ref = put_one(producer, &VECTOR(RDT_U8, BYTES, bytes), id);
    free(bytes);
    return ref;
}

/* The nodes may have to find each other again. */
static void must_fetch(const struct rdt_ref *ref, uint32_t seed)
{
    rdt_object *object;

    wait_until(LONG, try_fetch(reader, ref, RDT_FETCH_COPY, LONG, &object, NULL) == RDT_OK);
    must(holds_pattern(tensor_of(object, 0).data, BYTES, seed));
    rdt_release(object);
}

static rdt_request *hold_of(const struct rdt_ref *ref)
{
    rdt_request *hold = NULL;

    must_ok(rdt_hold(reader, ref, LONG, &hold, &err));
    return hold;
}

static uint32_t n_holds(const struct rdt_ref *ref)
{
    struct rdt_stat stat = stat_of(producer, ref);
    return stat.holds;
}

/* ---- the owner's daemon ---- */

/* From the producer's free on only the reader's hold keeps the object. */
Test(recovery_nodes, owner_killed_under_a_hold_keeps_the_object_until_the_reader_lets_go)
{
    rdt_request *hold, *more;

    begin_both(NULL);
    struct rdt_ref ref = put_bytes("held", 1);
    hold = hold_of(&ref);
    kill_and_start(&owners, "owner");
    must_ok(rdt_free(producer, &ref, false, &err));
    must_fetch(&ref, 1);
    kill_and_start(&owners, "owner");
    must_be(RDT_TIMED_OUT, rdt_wait_freed(producer, &ref, 100 * MSEC, &err));
    must_fetch(&ref, 1);
    must_be(RDT_TIMED_OUT, rdt_wait_freed(producer, &ref, 0, &err));
    wait_until(LONG, n_holds(&ref) == 1);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    must_be(RDT_FREED, rdt_hold(reader, &ref, LONG, &more, &err));
    end_both();
}

Test(recovery_nodes, what_the_reader_let_go_of_meanwhile_ends_when_the_nodes_meet_again)
{
    rdt_request *holds[2];

    begin_both(NULL);
    struct rdt_ref kept = put_bytes("kept", 1);
    struct rdt_ref dropped = put_bytes("dropped", 2);
    holds[0] = hold_of(&kept);
    holds[1] = hold_of(&dropped);
    must_ok(rdt_free(producer, &kept, false, &err));
    must_ok(rdt_free(producer, &dropped, false, &err));
    node_kill(&owners.node, SIGKILL);
    rdt_request_destroy(holds[1]);
    must_ok(rdt_ping(reader, LONG, &err));
    side_start(&owners, "owner");
    must_ok(rdt_wait_freed(producer, &dropped, LONG, &err));
    must_fetch(&kept, 1);
    rdt_request_destroy(holds[0]);
    must_ok(rdt_wait_freed(producer, &kept, LONG, &err));
    end_both();
}

Test(recovery_nodes, both_daemons_killed_at_once_keep_the_hold)
{
    begin_both("--hold-grace=1h");
    struct rdt_ref ref = put_bytes("held", 1);
    rdt_request *hold = hold_of(&ref);
    must_ok(rdt_free(producer, &ref, false, &err));
    node_kill(&owners.node, SIGKILL);
    node_kill(&holders.node, SIGKILL);
    side_start(&owners, "owner");
    side_start(&holders, "holder");
    must_ok(rdt_ping(reader, LONG, &err));
    must_fetch(&ref, 1);
    wait_until(LONG, n_holds(&ref) == 1); /* the hold of the earlier daemon has ended, the new one stays */
    must_fetch(&ref, 1);
    must_ok(rdt_request_status(hold, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    end_both();
}

Test(recovery_nodes, holder_that_does_not_come_back_keeps_nothing_beyond_restart_grace)
{
    begin_both("--restart-grace=4s");
    struct rdt_ref ref = put_bytes("held", 1);
    rdt_request *hold = hold_of(&ref);
    must_ok(rdt_free(producer, &ref, false, &err));
    node_kill(&holders.node, SIGKILL);
    kill_and_start(&owners, "owner");
    must_be(RDT_TIMED_OUT, rdt_wait_freed(producer, &ref, 0, &err));
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    must(node_log_has(&owners.node, "has not come back within restart_grace"));
    side_start(&holders, "holder");
    wait_until(LONG, rdt_ping(reader, LONG, NULL) == RDT_OK && rdt_request_status(hold, NULL) == RDT_FREED);
    rdt_request_destroy(hold);
    end_both();
}

/* ---- the holder's daemon ---- */

Test(recovery_nodes, holds_of_the_earlier_daemon_end_when_the_later_one_has_taken_them_again)
{
    begin_both("--hold-grace=1h");
    struct rdt_ref kept = put_bytes("kept", 1);
    struct rdt_ref dropped = put_bytes("dropped", 2);
    rdt_request *hold = hold_of(&kept);
    rdt_request *other = hold_of(&dropped);
    must_ok(rdt_free(producer, &dropped, false, &err));
    kill_and_start(&holders, "holder");
    must_ok(rdt_ping(reader, LONG, &err));
    must_fetch(&dropped, 2);
    rdt_request_destroy(other);
    must_ok(rdt_wait_freed(producer, &dropped, LONG, &err)); /* nobody waits for hold_grace */
    must_ok(rdt_request_status(hold, &err));
    must_ok(rdt_free(producer, &kept, false, &err));
    must_fetch(&kept, 1);
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(producer, &kept, LONG, &err));
    end_both();
}

Test(recovery_nodes, what_the_earlier_daemon_held_for_a_client_that_has_ended_ends_at_once)
{
    int channel[2];
    char byte = 0;

    begin_both("--hold-grace=1h");
    struct rdt_ref ref = put_bytes("held", 1);
    must(pipe(channel) == 0);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        reader = node_client(&holders.node, "child");
        (void)hold_of(&ref);
        (void)!write(channel[1], &byte, 1);
        pause();
        _exit(1);
    }
    must(read(channel[0], &byte, 1) == 1);
    must_ok(rdt_free(producer, &ref, false, &err));
    node_kill(&holders.node, SIGKILL);
    must(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    side_start(&holders, "holder");
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    (void)close(channel[0]);
    (void)close(channel[1]);
    end_both();
}

Test(recovery_nodes, hold_is_taken_again_from_an_owner_that_comes_later)
{
    begin_both("--hold-grace=8s"); /* so long the owner keeps what the earlier daemon held */
    struct rdt_ref ref = put_bytes("held", 1);
    rdt_request *hold = hold_of(&ref);
    must_ok(rdt_free(producer, &ref, false, &err));
    node_kill(&owners.node, SIGKILL);
    kill_and_start(&holders, "holder");
    must_ok(rdt_ping(reader, LONG, &err));
    must_be(RDT_PEER_LOST, rdt_hand_on(reader, &ref, SEC, &err)); /* it has tried, and failed */
    side_start(&owners, "owner");
    must_fetch(&ref, 1);
    must_ok(rdt_request_status(hold, &err));
    rdt_request_destroy(hold);
    must_ok(rdt_wait_freed(producer, &ref, LONG, &err));
    end_both();
}

Test(recovery_nodes, hold_that_cannot_be_taken_again_says_so)
{
    begin_both("--restart-grace=4s");
    struct rdt_ref ref = put_bytes("held", 1);
    rdt_request *hold = hold_of(&ref);
    node_kill(&owners.node, SIGKILL);
    kill_and_start(&holders, "holder");
    must_ok(rdt_ping(reader, LONG, &err));
    must_ok(rdt_request_status(hold, &err));
    wait_until(LONG, rdt_ping(reader, LONG, NULL) == RDT_OK && rdt_request_status(hold, NULL) == RDT_PEER_LOST);
    must_refuse(RDT_PEER_LOST, "hold of", rdt_request_status(hold, &err));
    rdt_request_destroy(hold);
    must(node_log_has(&holders.node, "could not be taken again"));
    side_start(&owners, "owner");
    end_both();
}

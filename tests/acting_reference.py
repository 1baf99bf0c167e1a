"""Oracles of the policies that act on a prediction or leave experts out.

Written from their definitions, like `reference`; the cache is a list of keys, the one touched
longest ago first.
"""

from follow_reference import Follower, f32
from reference import Outcome, oracle


class Cache:
    """A cache in order of last touch, with sizes."""

    def __init__(self, sizes, budget):
        self.sizes = sizes
        self.budget = budget
        self.order = []

    def size(self, key):
        return self.sizes[key[0]]

    @property
    def used(self):
        return sum(map(self.size, self.order))

    def touch(self, key):
        if key in self.order:
            self.order.remove(key)
        self.order.append(key)

    def watch(self, load):
        """See a load, after its touches and before the eviction."""

    def free(self, protected):
        """The keys that may go, in the order in which they would."""
        return [key for key in self.order if key not in protected]

    def evict(self, protected):
        gone = []
        while self.used > self.budget:
            free = self.free(protected)
            if not free:
                break
            self.order.remove(free[0])
            gone.append(free[0])
        return gone

    def promote(self, guess):
        """Make the residents among `guess` recent, the best most of all; return how many."""
        residents = [key for key in reversed(guess) if key in self.order]
        for key in residents:
            self.touch(key)
        return len(residents)


class FollowCache(Cache):
    """A cache that evicts as `follow` does; a guess for the next layer is worth 1, as if certain."""

    def __init__(self, loads, sizes, budget):
        super().__init__(sizes, budget)
        self.follower = Follower(loads, sizes)

    def watch(self, load):
        self.follower.watch(load)
        if load.decode:
            self.follower.value |= dict.fromkeys(load.guess, f32(1))

    def free(self, protected):
        return sorted(super().free(protected), key=self.follower.worth)

    def promote(self, guess):
        return sum(key in self.order for key in guess)


def cache_of(base, loads, sizes, budget):
    return Cache(sizes, budget) if base == "lru" else FollowCache(loads, sizes, budget)


@oracle("retention", base=["lru", "follow"])
def retention(loads, sizes, budget, base):
    cache = cache_of(base, loads, sizes, budget)
    out = Outcome([], [], counters={"promoted": 0})
    for load in loads:
        out.hits.append([key for key in load.recency if key in cache.order])
        for key in load.recency:
            cache.touch(key)
        cache.watch(load)
        cache.evict(load.protected)
        out.resident.append(cache.used)
        if load.decode:
            out.counters["promoted"] += cache.promote(load.guess)
    return out


@oracle("prefetch", spec_max=[0, 1, 9, 2], drop_frac=[0.0, 1.0, 0.5], base=["lru", "follow"])
def prefetch(loads, sizes, budget, spec_max, drop_frac, base):
    """A guess predicted to weigh less than ``drop_frac / k`` is not read ahead, but for the best."""
    cache = cache_of(base, loads, sizes, budget)
    ahead = {}  # read ahead, resident and not hit since: after which load
    out = Outcome([], [], read=[], prefetched=[])
    counters = dict.fromkeys(
        ("promoted", "speculative_reads", "speculative_useful", "speculative_skipped"), 0
    )
    counters["speculative_late"] = 0
    counters |= {"evicted_by_speculation": 0, "speculative_useful_bytes": 0}
    demand = wasted = 0

    def leave(key):
        nonlocal wasted
        if key in ahead:
            del ahead[key]
            wasted += cache.size(key)

    for number, load in enumerate(loads):
        hits = [key for key in load.recency if key in cache.order]
        useful = [key for key in hits if key in ahead]
        in_time = [key for key in useful if ahead.pop(key) == number - 1 and load.decode]
        counters["speculative_late"] += len(useful) - len(in_time)
        counters["speculative_useful"] += len(useful)
        counters["speculative_useful_bytes"] += sum(map(cache.size, useful))
        read = sum(cache.size(key) for key in load.recency if key not in hits)
        demand += read
        for key in load.recency:
            cache.touch(key)
        cache.watch(load)
        for key in cache.evict(load.protected):
            leave(key)
        if load.decode:
            counters["promoted"] += cache.promote(load.guess)
            least = drop_frac / len(load.experts)
            missing = [
                key
                for place, key in enumerate(load.guess)
                if key not in cache.order
                and (not drop_frac or place == 0 or not load.guess_weights[place] < least)
            ]
            for key in missing[: min(spec_max, len(load.experts))]:
                free = cache.free([*load.recency, *load.guess])
                need = cache.used + cache.size(key) - budget
                victims = []
                while need > 0 and free:
                    victims.append(free.pop(0))
                    need -= cache.size(victims[-1])
                if need > 0:
                    counters["speculative_skipped"] += 1
                    continue
                for victim in victims:
                    cache.order.remove(victim)
                    counters["evicted_by_speculation"] += 1
                    leave(victim)
                cache.order.insert(0, key)
                ahead[key] = number
                read += cache.size(key)
                counters["speculative_reads"] += 1
        out.hits.append(hits)
        out.resident.append(cache.used)
        out.read.append(read)
        out.prefetched.append(len(useful))
    reads = counters["speculative_reads"]
    out.counters = counters | {
        "demand_bytes": demand,
        "speculative_wasted_bytes": wasted + sum(map(cache.size, ahead)),
        "useful_share": counters["speculative_useful"] / reads if reads else None,
    }
    return out


def lossy(loads, sizes, budget, static, leaves_out):
    """LRU that leaves out experts of decoded tokens.

    ``leaves_out(share, place, heaviest, is_resident)`` says whether it leaves out the expert in
    slot `place`, which has `share` of the routing's weight; `heaviest` is the slot that has most.
    `static`: judged and counted on what plain LRU holds.
    """
    cache, plain = Cache(sizes, budget), Cache(sizes, budget)
    judged = plain if static else cache
    out = Outcome([], [], lookups=[])
    read = plain_read = dropped = n_routings = 0
    lost = 0.0
    for load in loads:
        gone = []
        if load.decode:
            n_routings += 1
            share = [weight / sum(load.weights) for weight in load.weights]
            gone = [
                place
                for place, key in enumerate(load.keys)
                if leaves_out(share[place], place, share.index(max(share)), key in judged.order)
            ]
            dropped += len(gone)
            lost += sum(share[place] for place in gone)
        used = [key for key in load.recency if key not in [load.keys[place] for place in gone]]
        hits = [key for key in used if key in judged.order]
        if load.decode:
            read += sum(cache.size(key) for key in used if key not in hits)
            plain_read += sum(plain.size(key) for key in load.recency if key not in plain.order)
        out.hits.append(hits)
        out.lookups.append(used)
        for one, touched in ((cache, used), (plain, load.recency)):
            for key in touched:
                one.touch(key)
            one.evict([] if load.bypass else touched)
        out.resident.append(judged.used)
    saved = plain_read - read
    out.counters = {
        "dropped": dropped,
        "saved_bytes": saved,
        "saved_share": saved / plain_read if plain_read else None,
        "mass_lost": lost / n_routings if n_routings else None,
    }
    return out


@oracle("drop-cold", frac=[0.0, 0.5, 0.75, 3.0, 1.0], static=[True, False])
def drop_cold(loads, sizes, budget, frac, static):
    k = next((len(load.experts) for load in loads if load.decode), 1)

    def leaves_out(share, place, heaviest, is_resident):
        return not is_resident and place != heaviest and share < frac / k

    return lossy(loads, sizes, budget, static, leaves_out)


@oracle("fewer-experts", keep=lambda k: range(k, 0, -1), static=[True, False])
def fewer_experts(loads, sizes, budget, keep, static):
    return lossy(loads, sizes, budget, static, lambda share, place, *_: place >= keep)

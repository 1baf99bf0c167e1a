"""The policies that act on a prediction or leave experts out, in plain Python on lists and dicts.

Written from their definitions; shares no code with the kernels. The cache is a list of keys, the
one touched longest ago first.
"""


def batches_of(batches):
    """Yield (index, is_decode, keys) of each batch."""
    for b in range(len(batches)):
        start, stop = int(batches.batch_start[b]), int(batches.batch_start[b + 1])
        yield b, bool(batches.phase[b] == 1), [int(k) for k in batches.keys[start:stop]]


class Cache:
    """A cache in order of last touch, with sizes."""

    def __init__(self, batches, budget):
        self.size = {
            layer * batches.n_expert + e: int(size)
            for layer, size in enumerate(batches.expert_bytes)
            for e in range(batches.n_expert)
        }
        self.budget = budget
        self.order = []

    @property
    def used(self):
        return sum(self.size[k] for k in self.order)

    def touch(self, key):
        if key in self.order:
            self.order.remove(key)
        self.order.append(key)

    def evict(self, protected):
        out = []
        while self.used > self.budget:
            free = [k for k in self.order if k not in protected]
            if not free:
                break
            self.order.remove(free[0])
            out.append(free[0])
        return out


def guessed(batches, b):
    return [int(k) for k in batches.guesses.keys[b] if k >= 0]


def retention(batches, budget):
    cache = Cache(batches, budget)
    hits, resident, promoted = [], [], 0
    for b, decode, keys in batches_of(batches):
        hits.append(sum(k in cache.order for k in keys))
        for key in keys:
            cache.touch(key)
        cache.evict(set(keys))
        resident.append(cache.used)
        if decode:
            for key in reversed(guessed(batches, b)):
                if key in cache.order:
                    cache.touch(key)
                    promoted += 1
    return {"hits": hits, "resident": resident, "promoted": promoted}


def prefetch(batches, budget, spec_max, threshold=None):
    """`threshold`: predicted weight below which nothing is read ahead, but for the best guess."""
    cache = Cache(batches, budget)
    ahead = set()
    out = {"hits": [], "resident": [], "read": [], "promoted": 0, "reads": 0, "useful": 0}
    out |= {"demand_bytes": 0, "useful_bytes": 0, "wasted_bytes": 0, "evicted": 0, "skipped": 0}
    for b, decode, keys in batches_of(batches):
        hits, read = 0, 0
        for key in keys:
            if key in cache.order:
                hits += 1
                if key in ahead:
                    ahead.remove(key)
                    out["useful"] += 1
                    out["useful_bytes"] += cache.size[key]
            else:
                read += cache.size[key]
        out["demand_bytes"] += read
        for key in keys:
            cache.touch(key)
        for key in cache.evict(set(keys)):
            if key in ahead:
                ahead.remove(key)
                out["wasted_bytes"] += cache.size[key]
        if decode:
            guess = guessed(batches, b)
            for key in reversed(guess):
                if key in cache.order:
                    cache.touch(key)
                    out["promoted"] += 1
            weights = None if batches.guesses.weights is None else batches.guesses.weights[b]
            missing = [
                key
                for place, key in enumerate(guess)
                if key not in cache.order
                and (threshold is None or place == 0 or not float(weights[place]) < threshold)
            ]
            for key in missing[:spec_max]:
                free = [k for k in cache.order if k not in keys and k not in guess]
                need = cache.used + cache.size[key] - budget
                victims = []
                while need > 0 and free:
                    victims.append(free.pop(0))
                    need -= cache.size[victims[-1]]
                if need > 0:
                    out["skipped"] += 1
                    continue
                for victim in victims:
                    cache.order.remove(victim)
                    out["evicted"] += 1
                    if victim in ahead:
                        ahead.remove(victim)
                        out["wasted_bytes"] += cache.size[victim]
                cache.order.insert(0, key)
                ahead.add(key)
                read += cache.size[key]
                out["reads"] += 1
        out["hits"].append(hits)
        out["resident"].append(cache.used)
        out["read"].append(read)
    out["wasted_bytes"] += sum(cache.size[k] for k in ahead)
    return out


def shares(batches, b):
    start, stop = int(batches.batch_start[b]), int(batches.batch_start[b + 1])
    weights = [float(w) for w in batches.weights[start:stop]]
    return [w / sum(weights) for w in weights]


def lossy(batches, budget, leaves_out, static):
    """`leaves_out(share, rank, heaviest, is_resident)` says whether an expert is left out."""
    cache, plain = Cache(batches, budget), Cache(batches, budget)
    out = {"hits": [], "lookups": [], "dropped": 0, "mass_lost": 0.0}
    read, plain_read, routings = 0, 0, 0
    for b, decode, keys in batches_of(batches):
        kept = list(keys)
        judged = plain if static else cache
        if decode:
            routings += 1
            share = shares(batches, b)
            heaviest = share.index(max(share))
            gone = [
                i
                for i, key in enumerate(keys)
                if leaves_out(share[i], i, i == heaviest, key in judged.order)
            ]
            kept = [key for i, key in enumerate(keys) if i not in gone]
            out["dropped"] += len(gone)
            out["mass_lost"] += sum(share[i] for i in gone)
        hit = [key for key in kept if key in judged.order]
        out["hits"].append(len(hit))
        out["lookups"].append(len(kept))
        if decode:
            read += sum(cache.size[k] for k in kept if k not in hit)
            plain_read += sum(plain.size[k] for k in keys if k not in plain.order)
        for one, touched in ((cache, kept), (plain, keys)):
            for key in touched:
                one.touch(key)
            one.evict(set(touched))
    out["mass_lost"] = out["mass_lost"] / routings if routings else None
    out["saved_bytes"] = plain_read - read
    out["saved_share"] = out["saved_bytes"] / plain_read if plain_read else None
    return out

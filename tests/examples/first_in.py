from tracekit.policies import PlainPolicy


class FirstIn(PlainPolicy):
    name = "first-in"
    summary = "evicts what was admitted first"

    def start(self, batches):
        self.admitted = {}

    def touch(self, key, now, hit):
        if not hit:
            self.admitted[key] = now

    def victim(self, evictable):
        return min(evictable, key=self.admitted.get)

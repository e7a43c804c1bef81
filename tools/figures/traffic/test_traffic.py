"""Tests of the traffic model: python3 -m unittest."""

import unittest

import model


class TestCache(unittest.TestCase):
    def test_blocks_that_were_not_used_for_the_longest_time_go_first_and_are_written_if_changed(self):
        cache = model.Cache(2, 0)
        cache.write("a")
        cache.read("b")
        cache.read("a")
        cache.read("c")  # replaces b, which memory has, too
        cache.read("a")
        self.assertEqual((cache.reads, cache.writes), (3, 0))
        cache.read("d")  # replaces c
        cache.read("e")  # replaces a
        self.assertEqual((cache.reads, cache.writes), (5, 1))

    def test_what_nics_bring_takes_the_place_of_what_they_brought(self):
        cache = model.Cache(3, 1)
        cache.read("mine")
        cache.deliver("first")
        cache.deliver("second")
        cache.read("mine")
        cache.read("second")
        self.assertEqual((cache.reads, cache.writes), (1, 1))

    def test_past_the_cache_every_delivery_is_written_and_read(self):
        cache = model.Cache(2, 0)
        for _ in range(2):
            cache.deliver("slot")
            cache.read("slot")
        self.assertEqual((cache.reads, cache.writes), (2, 2))


class TestTraffic(unittest.TestCase):
    def test_without_reuse_it_is_what_streams_cost(self):
        for workers in [1, 2, 8]:
            seen = model.traffic(64, 0, 300, workers, 200, "last")
            for one, other in zip(seen, model.streamed(workers)):
                self.assertAlmostEqual(one, other, delta=0.02)

    def test_a_model_that_fits_costs_nothing(self):
        for way in model.WAYS:
            self.assertEqual(model.traffic(10000, 5000, 100, 4, 50, way), (0, 0))

    def test_together_all_ways_read_the_slots_in_the_cache(self):
        for way in model.WAYS:
            reads, writes = model.traffic(400, 100, 2000, 4, 0, way)
            self.assertAlmostEqual(reads, 0.5, delta=0.02)  # only the state is read
            self.assertAlmostEqual(writes, 1.5, delta=0.02)

    def test_sums_as_they_come_save_reads_while_they_stay_in_the_cache_and_cost_more_beyond(self):
        def both(lag, way):
            return sum(model.traffic(800, 80, 4000, 8, lag, way))

        self.assertLess(both(200, "any order"), 0.8 * both(200, "last"))
        self.assertLess(both(200, "in order"), both(200, "last"))
        self.assertGreater(both(2500, "any order"), 1.2 * both(2500, "last"))
        self.assertGreater(both(2500, "in order"), both(2500, "last"))

    def test_each_worker_pushes_each_chunk_once_in_order(self):
        come = model.arrivals(50, 3, 20, 1)
        for worker in range(3):
            self.assertEqual(len([chunk for chunk, of in come if of == worker]), 50)
        self.assertEqual(sorted(set(come)), sorted(come))

    def test_the_smaller_of_memory_and_nics_limits(self):
        machine = model.Machine("", 1, 50, 100, 0, 1, 0)
        self.assertEqual(model.carried(machine, 4), (25, "memory"))
        self.assertEqual(model.carried(machine, 1), (50, "NICs"))


if __name__ == "__main__":
    unittest.main()

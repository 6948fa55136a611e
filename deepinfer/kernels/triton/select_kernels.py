"""The best places of a row: a sieve over long rows, and the choice among what it marks."""

import triton
import triton.language as tl

# bfloat16's greatest finite number: infinity is kept for what must win.
GREATEST: tl.constexpr = tl.constexpr(3.3895313892515355e38)


@triton.jit
def sieve(
    marks,
    scores,
    num_visible,
    width,
    part,
    topk,
    PER_LIMIT: tl.constexpr,
    TIMES: tl.constexpr,
    STEP: tl.constexpr,
    ROOM: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Of places [part * program 1, ...) of a row, mark all that may be among the best `topk`, and
    at most ROOM: a bit for each place.
    """
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * part
    stop = tl.minimum(start + part, _limit(num_visible, row, width, PER_LIMIT, TIMES))
    scores += row * width
    marks += row * (tl.cdiv(width, STEP) * (STEP // 8))

    # Groups of places that lie far apart: if `topk` of the groups have a best score of x or more,
    # so have `topk` places. Places that lie together, and are alike, are in different groups.
    best = tl.full((STEP,), -float("inf"), tl.float32)
    for at in range(start, stop, STEP):
        best = tl.maximum(best, _read(scores, at, width, STEP))
    best = tl.max(tl.reshape(best, (STEP // GROUPS, GROUPS)), 0)
    least = _at_least(_kth(best, topk))
    count = tl.zeros((STEP // 8,), tl.int32)
    for at in range(start, stop, STEP):
        # Not "at least": NaN stays.
        is_marked = (_read(scores, at, width, STEP) < least) == 0
        count += _mark(marks, at, is_marked, STEP)
    if tl.sum(count) > ROOM:
        _mark_best(marks, scores, start, stop, width, topk, STEP)


@triton.jit
def _mark_best(marks, scores, start, stop, width, topk, STEP: tl.constexpr):
    """Mark exactly the best: for rows with too many ties, or all good places in a few groups."""
    code = 0
    for step in range(16):
        trial = code | (0x8000 >> step)
        bar = _score_of(trial)
        reached = tl.zeros((STEP,), tl.int32)
        for at in range(start, stop, STEP):
            reached += (_ranked(_read(scores, at, width, STEP)) >= bar).to(tl.int32)
        code = tl.where(tl.sum(reached) >= topk, trial, code)
    least = _at_least(_score_of(code))
    above = tl.zeros((STEP,), tl.int32)
    for at in range(start, stop, STEP):
        above += (_ranked(_read(scores, at, width, STEP)) > least).to(tl.int32)
    room = topk - tl.sum(above)
    for at in range(start, stop, STEP):
        score = _ranked(_read(scores, at, width, STEP))
        equal = (score == least).to(tl.int32)
        is_first = (equal > 0) & (tl.cumsum(equal, 0) <= room)
        _mark(marks, at, (score > least) | is_first, STEP)
        room -= tl.sum(equal)


@triton.jit
def choose(
    chosen,
    scores,
    num_visible,
    marks,
    listed,
    candidates,
    sequence_ids,
    blocks,
    width,
    topk,
    num_candidates,
    num_blocks,
    PER_LIMIT: tl.constexpr,
    TIMES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PER_BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    WORDS: tl.constexpr,
    LENGTH: tl.constexpr,
    PADDED: tl.constexpr,
):
    """The best `topk` of a row's marked places, or of all where there are no marks, in order."""
    row = tl.program_id(0).to(tl.int64)
    limit = _limit(num_visible, row, width, PER_LIMIT, TIMES)
    scores += row * width
    place = tl.arange(0, LENGTH)
    if marks is not None:
        listed += row * LENGTH
        marks += row * (tl.cdiv(width, STEP) * (STEP // 32))
        count = _list(listed, marks, tl.cdiv(limit, 32), WORDS, LENGTH)
        # The list was written by other threads.
        tl.debug_barrier()
        is_listed = place < count
        place = tl.load(listed + place, mask=is_listed, other=0)
    else:
        is_listed = place < limit
    score = _ranked(numbers(scores, place, is_listed))
    least = _at_least(_kth(score, topk))
    above, equal = (score > least).to(tl.int32), (score == least).to(tl.int32)
    # Of the places that tie for the last ones, the first. Two counts in one scan, below 2**15 each.
    both = above + (equal << 16)
    total, before = tl.sum(both), tl.cumsum(both, 0) - both
    room = topk - (total & 0xFFFF)
    target = (before & 0xFFFF) + tl.minimum(before >> 16, room)
    is_chosen = (above > 0) | ((equal > 0) & ((before >> 16) < room))
    if candidates is not None:
        candidates += row * num_candidates
        block = tl.load(candidates + place // BLOCK_SIZE, mask=is_chosen, other=0)
        place = block * BLOCK_SIZE + place % BLOCK_SIZE
    if blocks is not None:
        blocks += tl.load(sequence_ids + row) * num_blocks
        block = tl.load(blocks + place // PER_BLOCK, mask=is_chosen, other=0)
        place = block.to(tl.int32) * PER_BLOCK + place % PER_BLOCK
    chosen += row * topk
    tl.store(chosen + target, place, mask=is_chosen)
    rest = tl.arange(0, PADDED)
    none = (rest >= (total & 0xFFFF) + tl.minimum(total >> 16, room)) & (rest < topk)
    tl.store(chosen + rest, tl.full((PADDED,), -1, tl.int32), mask=none)


@triton.jit
def _list(listed, marks, num_words, WORDS: tl.constexpr, LENGTH: tl.constexpr):
    """Write the places of all marks, ascending; returns how many there are."""
    count = 0
    for at in range(0, num_words, WORDS):
        # Told to be scattered, the words lie in the threads as the stores want them, which else
        # would cost a way through shared memory for each bit.
        word = tl.max_contiguous(at + tl.arange(0, WORDS), 1)
        bits = tl.load(marks + word, mask=word < num_words, other=0).to(tl.uint32, bitcast=True)
        number = _num_bits(bits)
        target = count + tl.cumsum(number, 0) - number
        for _ in range(tl.max(number)):
            lowest = bits & (~bits + 1)
            # Its exponent as a float is its place.
            bit = (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            tl.store(listed + target, word * 32 + bit, mask=(bits != 0) & (target < LENGTH))
            bits ^= lowest
            target += 1
        count += tl.sum(number)
    return count


@triton.jit
def _num_bits(bits):
    """How many bits of each uint32 are set, int32."""
    bits -= (bits >> 1) & 0x55555555
    bits = (bits & 0x33333333) + ((bits >> 2) & 0x33333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F
    return ((bits * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def _mark(marks, at, is_marked, STEP: tl.constexpr):
    """Write the marks of places at..at+STEP-1, eight to a byte; returns how many each byte has."""
    bit = 1 << (tl.arange(0, STEP) & 7)
    both = tl.where(is_marked, bit + 256, 0)  # the byte, and above it the count
    both = tl.sum(tl.reshape(both, (STEP // 8, 8)), 1)
    tl.store(marks + at // 8 + tl.arange(0, STEP // 8), (both & 255).to(tl.uint8))
    return both >> 8


@triton.jit
def _limit(num_visible, row, width, PER_LIMIT: tl.constexpr, TIMES: tl.constexpr):
    """How many of a row's places may hold anything: TIMES for each PER_LIMIT visible entries."""
    limit = width
    if num_visible is not None:
        visible = tl.load(num_visible + row).to(tl.int32)
        limit = tl.minimum(tl.cdiv(visible, PER_LIMIT) * TIMES, width)
    return limit


@triton.jit
def _read(scores, at, width, STEP: tl.constexpr):
    """Scores of places at..at+STEP-1, float32, -inf from `width` on."""
    place = at + tl.arange(0, STEP)
    return numbers(scores, place, place < width)


@triton.jit
def numbers(scores, place, mask):
    """bfloat16 by its bits, int16, as float32; -inf where there is none."""
    # Not by `other` of the load: Triton 3.6 fills every second of eight with a NaN.
    bits = tl.load(scores + place, mask=mask, other=0)
    score = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return tl.where(mask, score, -float("inf"))


@triton.jit
def _ranked(score):
    """NaN as infinity: nothing is better, and it compares."""
    return tl.where(score <= float("inf"), score, float("inf"))


@triton.jit
def _kth(score, topk):
    """The greatest x that `topk` of the scores reach, or NaN if fewer are numbers: 16 halvings of
    bfloat16's numbers in their order.
    """
    code = 0
    for bit in tl.static_range(16):
        trial = code | (0x8000 >> bit)
        code = tl.where(tl.sum((score >= _score_of(trial)).to(tl.int32)) >= topk, trial, code)
    return _score_of(code)


@triton.jit
def _score_of(code):
    """The number that has `code` smaller ones: 0 to 65535 in bfloat16's order, NaN at both ends."""
    bits = tl.where(code >= 0x8000, code - 0x8000, 0xFFFF - code)
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _at_least(score):
    """`score`, or where that is NaN or -inf, the least number: -inf is never chosen."""
    return tl.where(score > -GREATEST, score, -GREATEST)

package xtables

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strings"

	"vipd/dataplane/internal/nft"
)

// blockLimit is how much may go into one COMMIT, beyond the first group. 0 is no limit.
type blockLimit struct{ chains, rules int }

// nftBlock is what iptables-nft-restore takes best in one COMMIT: its time grows with the square of the chains. 13,336
// chains with 113,335 rules into an empty table took 2.0 to 2.2 s (0.7 s of legacy, in one COMMIT) with 100 to 300
// chains a COMMIT, 2.5 s with 1,000, 4.7 to 5.8 s in one. In what order the chains come, and whether all are declared
// before the first rule, made no difference above the noise of 5 % there.
func nftBlock() blockLimit { return blockLimit{chains: 300, rules: 1500} }

// nftCrowdedBlock is what it takes best where the table has many rules in use, which the kernel walks at each COMMIT:
// writing all of those chains again took 12.7 s with 300 chains a COMMIT, 7.1 s with 1,000, 5.1 s with 2,000, 9.8 s with
// 4,000.
func nftCrowdedBlock() blockLimit { return blockLimit{chains: 2000, rules: 10000} }

// crowdedEntries is how many rules, and jumps, make a table crowded.
const crowdedEntries = 20000

// minBlockRules is where smaller blocks are no remedy any more.
const minBlockRules = 50

// Write applies groups in their order, and returns how many are done. Where that is not all of them, err is about
// groups[done], of which nothing is done, nor of those after it. Only where ctx ends, or another program holds the tables
// (IsBusy), or the program does not start, more may have been done than it says: writing the same groups again is right
// then too.
//
// A refused rule is an *OpError that quotes it. Legacy's kernel says of a group only that it takes it or not: the error
// names a chain of the group, and quotes COMMIT.
//
// Small groups share a transaction, because each costs: nft walks all rules of the table (0.4 us each), legacy copies
// them (4 us each). Where the kernel bounds what fits into one (in a user namespace nft takes some 500 rules), blocks
// become smaller; a group that does not fit alone is refused with "Message too long".
func (t *Tool) Write(ctx context.Context, table string, groups []Group) (done int, err error) {
	return t.writer(ctx, table, groups).write(ctx, groups)
}

// WriteCounted is Write, and returns what the rules of the named chains had counted, as FullCounts does. In nft the kernel tells of
// each rule that is deleted, with its last count. In legacy, where reading them takes a quarter as long as writing, the writer
// returns what it has read. What rules count until it has written is lost: the kernel hands the last counts to the program, which
// drops them. That was 2.8 % of 30,000 flows in three seconds with 12 changes, some 7 ms a change. Counters are no reason not to
// write: chains whose counters can't be read are absent in the result.
func (t *Tool) WriteCounted(ctx context.Context, table string, groups []Group, chains []string) (done int, counts map[string][]uint64, err error) {
	w := t.writer(ctx, table, groups)
	if t.variant == Legacy || len(chains) == 0 {
		w.asked = chains
		done, err = w.write(ctx, groups)
		return done, w.counts, err
	}
	counts = make(map[string][]uint64, len(chains))
	for _, name := range chains {
		counts[name] = nil
	}
	write := func() { done, err = w.write(ctx, groups) }
	_ = nft.DeletedRules(tableOf(t.family, table), write, func(chain string, attrs []byte) {
		if _, asked := counts[chain]; asked {
			counts[chain] = append(counts[chain], countOf(attrs))
		}
	})
	return done, counts, err
}

// writer returns what writes groups.
func (t *Tool) writer(ctx context.Context, table string, groups []Group) *writer {
	w := &writer{tool: t, table: table}
	if t.variant == NFT {
		w.limit = nftBlock()
		if w.fill(groups, 0) < len(groups) && t.crowded(ctx, table) {
			w.limit = nftCrowdedBlock()
		}
	}
	return w
}

// crowded looks how much is in a table of nft. Where it can't it says no, and writing will say why.
func (t *Tool) crowded(ctx context.Context, table string) bool {
	n := 0
	chains, err := t.list(ctx, table)
	for _, c := range chains {
		n += int(c.Use)
	}
	return err == nil && n > crowdedEntries
}

// writer is one call of Write.
type writer struct {
	tool  *Tool
	table string
	limit blockLimit
	// asked are the chains whose counters the next run is to tell, and counts what came of that.
	asked  []string
	counts map[string][]uint64
}

// write is Write: when one run fails it finds out, with as few further runs as it can, about which group that is.
// Writing a group twice does no harm.
func (w *writer) write(ctx context.Context, groups []Group) (int, error) {
	if len(groups) == 0 {
		return 0, nil
	}
	input, blocks := w.render(groups)
	asked := len(w.asked)
	stdout, err := w.tool.restore(ctx, input)
	if asked > 0 {
		w.asked, w.counts = nil, listedCounts(stdout)
	}
	if err == nil {
		return len(groups), nil
	}
	var op *OpError
	if ctx.Err() != nil || !errors.As(err, &op) || op.Line == 0 && IsBusy(err) {
		return 0, err
	}
	b, group := blockAt(blocks, op.Line)
	switch {
	case op.Line > 1 && op.Line <= 1+asked: // one of those chains is not there any more, and nothing was done
		return w.write(ctx, groups)
	case strings.Contains(op.Text, "Message too long") && b.hi-b.lo > 1 && w.limit.rules > minBlockRules:
		w.limit = blockLimit{chains: max(1, w.limit.chains/2), rules: w.limit.rules / 2}
		n, err := w.write(ctx, groups[b.lo:])
		return b.lo + n, err
	case group >= 0: // those before it were undone with it, or are done
		if n, earlier := w.write(ctx, groups[b.lo:group]); earlier != nil {
			return b.lo + n, earlier
		}
		return group, err
	case b.hi-b.lo == 1:
		return b.lo, fmt.Errorf("writing %s: %w", groups[b.lo].describe(), err)
	}
	middle := (b.lo + b.hi) / 2
	for _, part := range [][2]int{{b.lo, middle}, {middle, b.hi}, {b.hi, len(groups)}} {
		if n, err := w.write(ctx, groups[part[0]:part[1]]); err != nil {
			return part[0] + n, err
		}
	}
	return len(groups), nil
}

// describe names a group by its first chain.
func (g *Group) describe() string {
	names := len(g.Write) + len(g.Delete)
	switch {
	case names == 0:
		return "nothing"
	case len(g.Write) == 0:
		return fmt.Sprintf("the end of chain %s (one of %d)", g.Delete[0], names)
	case names == 1:
		return "chain " + g.Write[0].Name
	}
	return fmt.Sprintf("chain %s and %d more", g.Write[0].Name, names-1)
}

// block is the groups lo to hi-1 in one COMMIT, and where they are in the input.
type block struct {
	lo, hi int
	first  []int // the first line of each group
	commit int   // the line of COMMIT
}

// blockAt returns the block and the group that a line belongs to. A line that is no group's, such as COMMIT, has group -1;
// one that is nowhere belongs to a block of everything.
func blockAt(blocks []block, line int) (b block, group int) {
	i := sort.Search(len(blocks), func(i int) bool { return line <= blocks[i].commit })
	if line == 0 || i == len(blocks) {
		return block{lo: blocks[0].lo, hi: blocks[len(blocks)-1].hi}, -1
	}
	b = blocks[i]
	if line == b.commit || line < b.first[0] {
		return b, -1
	}
	return b, b.lo + sort.SearchInts(b.first, line+1) - 1
}

// render writes the input of one run. A chain that is in two groups gets two blocks, so that each does what it says.
func (w *writer) render(groups []Group) (string, []block) {
	var out strings.Builder
	var blocks []block
	lines := 0
	put := func(parts ...string) {
		for _, p := range parts {
			out.WriteString(p)
		}
		out.WriteByte('\n')
		lines++
	}
	for rest := 0; rest < len(groups); {
		b := block{lo: rest, hi: w.fill(groups, rest)}
		put("*", w.table)
		if rest == 0 {
			for _, name := range w.asked {
				put("-S ", name, " -v")
			}
		}
		for i := b.lo; i < b.hi; i++ {
			b.first = append(b.first, lines+1)
			groups[i].render(put)
		}
		put("COMMIT")
		b.commit, rest = lines, b.hi
		blocks = append(blocks, b)
	}
	return out.String(), blocks
}

func (g *Group) render(put func(parts ...string)) {
	for i := range g.Write {
		put(":", g.Write[i].Name, " - [0:0]")
	}
	for _, name := range g.Delete {
		put(":", name, " - [0:0]")
	}
	for i := range g.Write {
		for _, rule := range g.Write[i].Rules {
			put("-A ", g.Write[i].Name, " ", rule)
		}
	}
	for _, name := range g.Delete {
		put("-X ", name)
	}
}

// fill returns the end of the block that begins with groups[lo]: one group, and as many more as are within the limit.
func (w *writer) fill(groups []Group, lo int) int {
	chains, rules := 0, 0
	seen := map[string]bool{}
	for i := lo; i < len(groups); i++ {
		g := &groups[i]
		twice := false
		chains += len(g.Write) + len(g.Delete)
		for k := range g.Write {
			rules += len(g.Write[k].Rules)
			twice = twice || seen[g.Write[k].Name]
		}
		for _, name := range g.Delete {
			twice = twice || seen[name]
		}
		over := w.limit.chains > 0 && (chains > w.limit.chains || rules > w.limit.rules)
		if i > lo && (twice || over) {
			return i
		}
		for k := range g.Write {
			seen[g.Write[k].Name] = true
		}
		for _, name := range g.Delete {
			seen[name] = true
		}
	}
	return len(groups)
}

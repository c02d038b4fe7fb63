package guard

import (
	"context"
	"slices"
	"strings"
)

// gathering is a Tool that puts off what is to be written, so that one program writes it all: to start programs is
// most of what the guard takes. What it reads is as it will be then.
type gathering struct {
	Tool
	lines strings.Builder
	read  map[chainAt][]string // rules as they are in the kernel
	edits map[chainAt][]string // lines that are put off about rules of a chain, in order
	there map[chainAt]bool     // chains that are declared or deleted by what is put off
}

// chainAt is a chain of a table.
type chainAt struct{ table, chain string }

func newGathering(tool Tool) *gathering {
	return &gathering{Tool: tool, read: map[chainAt][]string{}, edits: map[chainAt][]string{}, there: map[chainAt]bool{}}
}

// Restore implements Tool.
func (w *gathering) Restore(_ context.Context, input string) error {
	w.lines.WriteString(input)
	table := ""
	for line := range strings.Lines(input) {
		line = strings.TrimSpace(line)
		verb, rest, _ := strings.Cut(line, " ")
		chain, rest, _ := strings.Cut(rest, " ")
		at := chainAt{table, chain}
		switch {
		case line[0] == '*':
			table = line[1:]
		case line[0] == ':':
			at.chain = verb[1:]
			w.there[at] = true
			w.edits[at] = []string{"-F"}
		case verb == "-X":
			w.there[at] = false
		case verb == "-I":
			_, rule, _ := strings.Cut(rest, " ") // after its number, which is 1
			w.edits[at] = append(w.edits[at], "-I "+rule)
		case verb == "-A" || verb == "-D":
			w.edits[at] = append(w.edits[at], verb+" "+rest)
		}
	}
	return nil
}

// flush writes what was put off.
func (w *gathering) flush(ctx context.Context) error {
	if w.lines.Len() == 0 {
		return nil
	}
	input := w.lines.String()
	w.lines.Reset()
	clear(w.read)
	clear(w.edits)
	clear(w.there)
	return w.Tool.Restore(ctx, input)
}

// Rules implements Tool.
func (w *gathering) Rules(ctx context.Context, table, chain string) ([]string, error) {
	at := chainAt{table, chain}
	rules, ok := w.read[at]
	if !ok {
		var err error
		if rules, err = w.Tool.Rules(ctx, table, chain); err != nil {
			return nil, err
		}
		w.read[at] = rules
	}
	rules = slices.Clone(rules)
	for _, edit := range w.edits[at] {
		verb, rule, _ := strings.Cut(edit, " ")
		switch verb {
		case "-F":
			rules = nil
		case "-I":
			rules = slices.Insert(rules, 0, rule)
		case "-A":
			rules = append(rules, rule)
		case "-D":
			if i := slices.Index(rules, rule); i >= 0 {
				rules = slices.Delete(rules, i, i+1)
			}
		}
	}
	return rules, nil
}

// HasJump implements Tool.
func (w *gathering) HasJump(ctx context.Context, table, chain string, rule ...string) (bool, error) {
	if err := w.flush(ctx); err != nil { // only the program knows whether two rules say the same
		return false, err
	}
	return w.Tool.HasJump(ctx, table, chain, rule...)
}

// ChainExists implements Tool.
func (w *gathering) ChainExists(ctx context.Context, table, chain string) (bool, error) {
	if there, ok := w.there[chainAt{table, chain}]; ok {
		return there, nil
	}
	return w.Tool.ChainExists(ctx, table, chain)
}

// atOnce calls do for parts with a tool that puts off what is to be written, and then writes it. Each part is a transaction
// of its own all the same. Where something is refused it is as if nothing was known to be done: to do it part by part
// finds out which, and what is done twice changes nothing.
func (g *legacy) atOnce(ctx context.Context, tool Tool, parts []*part, do func(tool Tool, p *part) error) error {
	before := make([]part, len(parts))
	for i, p := range parts {
		before[i] = *p
	}
	w := newGathering(tool)
	var err error
	for _, p := range parts {
		if err == nil {
			err = do(w, p)
		}
	}
	if err == nil {
		err = w.flush(ctx)
	}
	if err != nil {
		for i, p := range parts {
			*p = before[i]
		}
	}
	return err
}

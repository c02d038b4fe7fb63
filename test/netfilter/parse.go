package netfilter

import (
	"fmt"
	"slices"
	"strings"
)

// Parse reads iptables-restore input for each family and ipset-restore input, as if they were restored in order into
// an empty kernel with --noflush: several blocks for one table add up, and a chain of ours that is declared again is
// emptied. Nothing is ignored: what the kernel would refuse, and what this package does not know, is an error.
func Parse(rules4, rules6, sets string) (*Ruleset, error) {
	r := &Ruleset{families: map[bool]*family{}, counters: map[*nth]uint32{}}
	var err error
	if r.sets, err = parseSets(sets); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name, text string
		v6         bool
	}{{"IPv4", rules4, false}, {"IPv6", rules6, true}} {
		p := &parser{family: newFamily(f.v6), sets: r.sets}
		r.families[f.v6] = p.family
		for i, line := range strings.Split(f.text, "\n") {
			if err := p.line(strings.TrimSpace(line)); err != nil {
				return nil, fmt.Errorf("%s: line %d: %q: %w", f.name, i+1, line, err)
			}
		}
		if p.table != nil {
			return nil, fmt.Errorf("%s: table %s has no COMMIT", f.name, p.table.name)
		}
		if err := p.family.validate(); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return r, nil
}

// parser reads the rules of one family.
type parser struct {
	family *family
	sets   map[string]*set
	table  *table // nil between blocks
}

func (p *parser) line(line string) error {
	switch {
	case line == "" || line[0] == '#':
		return nil
	case line[0] == '*':
		return p.open(line[1:])
	case p.table == nil:
		return fmt.Errorf("it stands outside of any table")
	case line == "COMMIT":
		p.table = nil
		return nil
	case line[0] == ':':
		return p.declare(strings.Fields(line[1:]))
	}
	words, err := split(line)
	if err != nil {
		return err
	}
	if len(words) < 2 {
		return fmt.Errorf("it has too few words")
	}
	c := p.table.chains[words[1]]
	if c == nil {
		return fmt.Errorf("there is no chain %s", words[1])
	}
	switch rest := words[2:]; words[0] {
	case "-A":
		r, err := p.rule(c, line, rest)
		c.rules = append(c.rules, r)
		return err
	case "-I":
		if len(rest) > 0 && rest[0] == "1" {
			rest = rest[1:]
		}
		r, err := p.rule(c, line, rest)
		c.rules = slices.Insert(c.rules, 0, r)
		return err
	}
	return fmt.Errorf("%s is not known here", words[0])
}

func (p *parser) open(name string) error {
	if p.table != nil {
		return fmt.Errorf("table %s has no COMMIT", p.table.name)
	}
	if p.table = p.family.tables[name]; p.table == nil {
		return fmt.Errorf("table %s is not known here", name)
	}
	return nil
}

// declare reads a line such as ":VIPD-SERVICES - [0:0]".
func (p *parser) declare(words []string) error {
	if len(words) < 2 {
		return fmt.Errorf("it has too few words")
	}
	name, policy := words[0], words[1]
	c := p.table.chains[name]
	switch {
	case policy == "-" && (c == nil || c.policy == ""):
		if len(name) > 28 {
			return fmt.Errorf("the name has %d characters, the kernel takes 28", len(name))
		}
		if c == nil {
			p.table.order = append(p.table.order, name)
		}
		p.table.chains[name] = &chain{name: name}
	case policy == "-":
	case c == nil || c.policy == "":
		return fmt.Errorf("only the kernel's chains have a policy")
	case policy != "ACCEPT" && policy != "DROP":
		return fmt.Errorf("%s is no policy", policy)
	default:
		c.policy = policy
	}
	return nil
}

// split cuts a line into words as iptables-restore does.
func split(line string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	inWord, escaped := false, false
	for _, c := range line {
		switch {
		case escaped:
			word.WriteRune(c)
			escaped = false
		case c == '\\' && quote != 0:
			escaped = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, inWord = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if inWord {
				words = append(words, word.String())
				word.Reset()
			}
			inWord = false
		default:
			word.WriteRune(c)
			inWord = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote does not end")
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// ruleParser reads one rule.
type ruleParser struct {
	*parser
	chain *chain
	rule  *rule
	words []string // that are left
	// modules are those that -m has loaded, by whether an option of theirs came.
	modules map[string]bool
	proto   Protocol // of -p
	in, out bool     // -i, -o were there
	stat    statistic
}

func (p *parser) rule(c *chain, line string, words []string) (*rule, error) {
	rp := &ruleParser{parser: p, chain: c, rule: &rule{text: line}, words: words, modules: map[string]bool{}}
	for len(rp.words) > 0 {
		if err := rp.option(); err != nil {
			return rp.rule, err
		}
	}
	return rp.rule, rp.finish()
}

// option reads one option of the rule with its values; its target takes all that is left.
func (p *ruleParser) option() error {
	not := p.take("!")
	word, err := p.next()
	if err != nil {
		return err
	}
	switch word {
	case "-m", "--match":
		return p.load()
	case "-j", "--jump", "-g", "--goto":
		if not {
			return fmt.Errorf("! before %s", word)
		}
		return p.target(word == "-g" || word == "--goto")
	}
	m, head, err := p.match(word)
	if err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	if m == nil { // it adds to another
		if not {
			return fmt.Errorf("! before %s is not known here", word)
		}
		return nil
	}
	if not {
		yes := m
		m = func(f *flow) bool { return !yes(f) }
	}
	if head {
		p.rule.head = append(p.rule.head, m)
	} else {
		p.rule.matches = append(p.rule.matches, m)
	}
	return nil
}

func (p *ruleParser) load() error {
	name, err := p.next()
	if err != nil {
		return err
	}
	switch name {
	case "comment", "set", "conntrack", "mark", "connmark", "statistic", "bpf", "addrtype":
	case "tcp", "udp", "sctp":
		if p.proto != Protocol(name) {
			return fmt.Errorf("-m %s needs -p %s before it", name, name)
		}
		p.modules[name] = true
		return nil
	default:
		return fmt.Errorf("match %s is not known here", name)
	}
	if used, loaded := p.modules[name]; loaded && !used {
		return fmt.Errorf("match %s has no option", name)
	}
	p.modules[name] = false
	return nil
}

// use notes that an option of a module came, which has to be loaded.
func (p *ruleParser) use(module string) error {
	if _, loaded := p.modules[module]; !loaded {
		return fmt.Errorf("it needs -m %s before it", module)
	}
	p.modules[module] = true
	return nil
}

func (p *ruleParser) finish() error {
	for name, used := range p.modules {
		if !used {
			return fmt.Errorf("match %s has no option", name)
		}
	}
	if p.chain.policy == "" {
		return nil
	}
	switch p.chain.name {
	case "PREROUTING", "INPUT":
		if p.out {
			return fmt.Errorf("%s has no outgoing interface", p.chain.name)
		}
	case "OUTPUT", "POSTROUTING":
		if p.in {
			return fmt.Errorf("%s has no incoming interface", p.chain.name)
		}
	}
	return nil
}

func (p *ruleParser) next() (string, error) {
	if len(p.words) == 0 {
		return "", fmt.Errorf("it ends too early")
	}
	word := p.words[0]
	p.words = p.words[1:]
	return word, nil
}

// take takes the next word if it is this one.
func (p *ruleParser) take(word string) bool {
	if len(p.words) == 0 || p.words[0] != word {
		return false
	}
	p.words = p.words[1:]
	return true
}

package tomlfile

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/snap"
)

// merge makes one set of services, and one of settings of addresses, of what the files define, with work only for what
// changed.
type merge struct {
	// main sorts before all other files.
	main string
	// files are those that are merged.
	files map[string]*contents
	// faulty are the files with problems.
	faulty   map[string]bool
	services merged[balancer.Name, balancer.Service]
	vips     merged[netip.Addr, balancer.VIP]
}

func newMerge(main string) merge {
	m := merge{main: main, files: map[string]*contents{}, faulty: map[string]bool{}}
	m.services, m.vips = newMerged[balancer.Name, balancer.Service](), newMerged[netip.Addr, balancer.VIP]()
	return m
}

// compare orders files: the main file first, then by path.
func (m *merge) compare(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == m.main:
		return -1
	case b == m.main:
		return 1
	}
	return cmp.Compare(a, b)
}

// put makes fresh the contents of the file at path; nil means it is gone. What follows from that waits for settle.
func (m *merge) put(path string, fresh *contents) {
	old := m.files[path]
	if old == fresh {
		return
	}
	old = cmp.Or(old, &contents{})
	m.files[path] = fresh
	if fresh == nil {
		delete(m.files, path)
		fresh = &contents{}
	}
	if delete(m.faulty, path); len(fresh.problems) > 0 {
		m.faulty[path] = true
	}
	m.services.put(path, m.compare, old.services, fresh.services)
	m.vips.put(path, m.compare, old.vips, fresh.vips)
}

// settle does what follows from what was put. A table that went from one file to another is not gone in between.
func (m *merge) settle() {
	m.services.settle(func(path string) map[balancer.Name]definition[balancer.Service] { return m.files[path].services })
	m.vips.settle(func(path string) map[netip.Addr]definition[balancer.VIP] { return m.files[path].vips })
}

// problems are those of all files, and those between them, in no particular order.
func (m *merge) problems() []balancer.Problem {
	var problems []balancer.Problem
	for path := range m.faulty {
		problems = append(problems, m.files[path].problems...)
	}
	for _, c := range m.services.contests() {
		problems = append(problems, twice(balancer.Problem{Service: c.of}, c.holder, m.files[c.loser].services[c.of].origin, m.files[c.holder].services[c.of].origin))
	}
	for _, c := range m.vips.contests() {
		field := decode.Join("vips", c.of.String())
		problems = append(problems, twice(balancer.Problem{Field: field}, c.holder, m.files[c.loser].vips[c.of].origin, m.files[c.holder].vips[c.of].origin))
	}
	return problems
}

// twice is the problem of a table at origin that another file has too, from which it is taken.
func twice(p balancer.Problem, holder string, origin, taken balancer.Origin) balancer.Problem {
	p.Severity, p.Origin = balancer.SeverityError, origin
	p.Text = fmt.Sprintf("is defined at %s:%d too, and taken from there; rename or remove one of the two", holder, taken.Line)
	return p
}

// merged is one kind of tables, of all files.
type merged[K snap.Ordered[K], V any] struct {
	// claims are the files that define a table, in order; it has at least one.
	claims map[K][]string
	// holders says which of them it is taken from, and contested are the tables with several.
	holders   map[K]string
	contested map[K]bool
	// changed are the tables that settle has to look at.
	changed map[K]bool
	// values are what is merged: of each table the last good state.
	values snap.Map[K, *V]
}

func newMerged[K snap.Ordered[K], V any]() merged[K, V] {
	return merged[K, V]{claims: map[K][]string{}, holders: map[K]string{}, contested: map[K]bool{}, changed: map[K]bool{}}
}

// put takes in that the file at path defines fresh where it defined old.
func (m *merged[K, V]) put(path string, compare func(a, b string) int, old, fresh map[K]definition[V]) {
	for key := range old {
		if _, still := fresh[key]; !still {
			m.unclaim(key, path)
			m.changed[key] = true
		}
	}
	for key, d := range fresh {
		former, had := old[key]
		if !had {
			m.claim(key, path, compare)
		}
		if former != d || !had {
			m.changed[key] = true
		}
	}
}

func (m *merged[K, V]) claim(key K, path string, compare func(a, b string) int) {
	claims := m.claims[key]
	i, _ := slices.BinarySearchFunc(claims, path, compare)
	m.claims[key] = slices.Insert(claims, i, path)
	if len(claims) > 0 {
		m.contested[key] = true
	}
}

func (m *merged[K, V]) unclaim(key K, path string) {
	claims := slices.DeleteFunc(m.claims[key], func(p string) bool { return p == path })
	m.claims[key] = claims
	if len(claims) < 2 {
		delete(m.contested, key)
	}
	if len(claims) == 0 {
		delete(m.claims, key)
	}
}

// settle takes each changed table from the file that holds it. Tables returns those of a file.
func (m *merged[K, V]) settle(tables func(path string) map[K]definition[V]) {
	for key := range m.changed {
		claims := m.claims[key]
		if len(claims) == 0 {
			delete(m.holders, key)
			m.values = m.values.Delete(key)
			continue
		}
		if !slices.Contains(claims, m.holders[key]) {
			m.holders[key] = claims[0]
		}
		value := tables(m.holders[key])[key].value
		if former := m.values.At(key); value != nil && !reflect.DeepEqual(former, value) {
			m.values = m.values.Set(key, value)
		}
	}
	m.changed = map[K]bool{}
}

// contest is a table that two files define.
type contest[K any] struct {
	of            K
	holder, loser string
}

func (m *merged[K, V]) contests() (all []contest[K]) {
	for key := range m.contested {
		for _, path := range m.claims[key] {
			if path != m.holders[key] {
				all = append(all, contest[K]{key, m.holders[key], path})
			}
		}
	}
	return all
}

package tomlfile

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	"vipd/balancer"
	"vipd/balancer/snap"
)

// merge makes one set of services of what the files define, with work only for what changed.
type merge struct {
	// main sorts before all other files.
	main string
	// files are those that are merged.
	files map[string]*contents
	// claims are the files that define a service, in order; it has at least one.
	claims map[balancer.Name][]string
	// holders says which of them it is taken from, and contested are the services with several.
	holders   map[balancer.Name]string
	contested map[balancer.Name]bool
	// faulty are the files with problems.
	faulty map[string]bool
	// services are what is merged: of each service the last good state.
	services snap.Map[balancer.Name, *balancer.Service]
}

func newMerge(main string) merge {
	return merge{
		main: main, files: map[string]*contents{}, claims: map[balancer.Name][]string{},
		holders: map[balancer.Name]string{}, contested: map[balancer.Name]bool{}, faulty: map[string]bool{},
	}
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

// pass is one run of changes. A service that goes from one file to another in it is not gone in between.
type pass map[balancer.Name]bool

// put makes fresh the contents of the file at path; nil: it is gone. What follows for the services waits for settle.
func (m *merge) put(p pass, path string, fresh *contents) {
	old := m.files[path]
	if old == fresh {
		return
	}
	if old == nil {
		old = &contents{}
	}
	m.files[path] = fresh
	if fresh == nil {
		delete(m.files, path)
		fresh = &contents{}
	}
	if delete(m.faulty, path); len(fresh.problems) > 0 {
		m.faulty[path] = true
	}
	for name := range old.services {
		if _, still := fresh.services[name]; !still {
			m.unclaim(name, path)
			p[name] = true
		}
	}
	for name, d := range fresh.services {
		former, had := old.services[name]
		if !had {
			m.claim(name, path)
		}
		if former != d || !had {
			p[name] = true
		}
	}
}

func (m *merge) claim(name balancer.Name, path string) {
	claims := m.claims[name]
	i, _ := slices.BinarySearchFunc(claims, path, m.compare)
	m.claims[name] = slices.Insert(claims, i, path)
	if len(claims) > 0 {
		m.contested[name] = true
	}
}

func (m *merge) unclaim(name balancer.Name, path string) {
	claims := slices.DeleteFunc(m.claims[name], func(p string) bool { return p == path })
	m.claims[name] = claims
	if len(claims) < 2 {
		delete(m.contested, name)
	}
	if len(claims) == 0 {
		delete(m.claims, name)
	}
}

// settle carries out what follows from the pass.
func (m *merge) settle(p pass) {
	for name := range p {
		claims := m.claims[name]
		if len(claims) == 0 {
			delete(m.holders, name)
			m.services = m.services.Delete(name)
			continue
		}
		if !slices.Contains(claims, m.holders[name]) {
			m.holders[name] = claims[0]
		}
		service := m.files[m.holders[name]].services[name].service
		if former := m.services.At(name); service != nil && !reflect.DeepEqual(former, service) {
			m.services = m.services.Set(name, service)
		}
	}
}

// problems are those of all files, and those between them, in no particular order.
func (m *merge) problems() []balancer.Problem {
	var problems []balancer.Problem
	for path := range m.faulty {
		problems = append(problems, m.files[path].problems...)
	}
	for name := range m.contested {
		holder := m.holders[name]
		at := m.files[holder].services[name].origin
		for _, path := range m.claims[name] {
			if path == holder {
				continue
			}
			problems = append(problems, balancer.Problem{
				Severity: balancer.SeverityError, Origin: m.files[path].services[name].origin, Service: name,
				Text: fmt.Sprintf("is defined at %s:%d too, and taken from there; rename or remove one of the two", at.File, at.Line),
			})
		}
	}
	return problems
}

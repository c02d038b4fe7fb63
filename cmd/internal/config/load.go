package config

import (
	"errors"
	"fmt"
	"io/fs"

	"vipd/balancer"
	"vipd/store/tomlfile"
)

// Load reads a configuration file. An error means that there is nothing to read; problems are what is wrong in it.
func Load(file string) (Config, []balancer.Problem, error) {
	text, err := tomlfile.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Default(), nil, fmt.Errorf("there is no configuration at %s: write one, or name another with --config: %w", file, err)
	case err != nil:
		return Default(), nil, fmt.Errorf("reading the configuration: %w", err)
	}
	d, problems := tomlfile.Parse(file, text)
	if d == nil {
		return Default(), problems, nil
	}
	c, more := Decode(d)
	return c, append(problems, more...), nil
}

// Unusable returns an error that lists what keeps a configuration with these problems from being used; nil means nothing does.
func Unusable(problems []balancer.Problem) error {
	var all []error
	for _, p := range problems {
		if p.Severity == balancer.SeverityError {
			all = append(all, errors.New(p.String()))
		}
	}
	return errors.Join(all...)
}

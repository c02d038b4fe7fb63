package config

import (
	"testing"

	"vipd/store/tomlfile"
)

// TestFastPathDevices decodes fast_path settings. Each mistake must be reported at the element or
// the setting that contains it.
func TestFastPathDevices(t *testing.T) {
	for text, want := range map[string]string{
		`fast_path = ["eth0", "eth1.7"]`:                       "",
		`fast_path = ["auto"]` + "\nfast_path_hardware = true": "",
		`fast_path = ["eth0", "a b"]`:                          "fast_path[1]",
		`fast_path = ["lo"]`:                                   "fast_path[0]",
		`fast_path = ["eth0", "auto"]`:                         "fast_path[1]",
		`fast_path_hardware = true`:                            "fast_path_hardware",
	} {
		d, problems := tomlfile.Parse("vipd.toml", []byte(text+"\n"))
		if len(problems) > 0 {
			t.Fatalf("%s: problems = %v, want none", text, problems)
		}
		_, problems = Decode(d)
		got := ""
		if len(problems) > 0 {
			got = problems[0].Field
		}
		if got != want || len(problems) > 1 {
			t.Errorf("%s: problems = %v, want one problem at the field %q", text, problems, want)
		}
	}
}

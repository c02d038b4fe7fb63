package main

// completer lists what may stand at the end of the arguments given so far. Where the daemon or etcd does not answer, it
// lists nothing.
type completer func(c *call, before []string) []string

// inTurn completes the first argument by the first completer, the second by the second, and so on.
func inTurn(all ...completer) completer {
	return func(c *call, before []string) []string {
		if len(before) < len(all) {
			return all[len(before)](c, before)
		}
		return nil
	}
}

func oneOf(words ...string) completer {
	return func(*call, []string) []string { return words }
}

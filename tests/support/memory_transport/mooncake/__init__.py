"""Stand in for the package `mooncake`, whose engine needs libraries of network cards."""

"""The controller: the one program in the cluster that writes Nodes on behalf of the agents on VM hosts."""

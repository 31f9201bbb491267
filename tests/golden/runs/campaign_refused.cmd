smsim campaign scenarios/job_campaign_bert.toml --set campaign.nodes=0 --set campaign.runs=1.5 --set campaign.keep=1h --set "campaign.group=[{count=1, nodes=3, duration_law=\"fixed\"}]"
